"""Registers the regions modality."""

from watersmeet.plugins import ModalitySpec, hookimpl


@hookimpl
def register_modalities() -> list[ModalitySpec]:
    """The regions modality: one token for each text and each shape of a screenshot."""
    return [
        ModalitySpec(
            name="regions",
            media_types=("image/png", "image/jpeg", "image/webp", "application/json"),
            encoder="watersmeet.tokenizers.regions.encoder:Encoder",
            embedder="watersmeet.tokenizers.regions.embedder:Embedder",
            atomic=True,
            summary="texts read from a screenshot and shapes found in it, with their boxes and colours",
        )
    ]
