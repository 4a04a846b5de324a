"""Registers the text modality."""

from watersmeet.plugins import ModalitySpec, hookimpl


@hookimpl
def register_modalities() -> list[ModalitySpec]:
    """The text modality; the only built-in one that is also written."""
    return [
        ModalitySpec(
            name="text",
            media_types=("text/plain",),
            encoder="watersmeet.tokenizers.text.encoder:Encoder",
            embedder="watersmeet.tokenizers.text.embedder:Embedder",
            decoder="watersmeet.tokenizers.text.decoder:Decoder",
            writes=True,
            summary="sentencepiece ids with byte fallback, and symbols that no text can produce",
        )
    ]
