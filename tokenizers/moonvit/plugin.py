"""Registers the moonvit modality."""

from watersmeet.plugins import ModalitySpec, hookimpl


@hookimpl
def register_modalities() -> list[ModalitySpec]:
    """The moonvit modality. An item is one picture or one group of frames and must never be cut: its patches see each other."""
    return [
        ModalitySpec(
            name="moonvit",
            media_types=("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff"),
            encoder="watersmeet.tokenizers.moonvit.encoder:Encoder",
            embedder="watersmeet.tokenizers.moonvit.embedder:Embedder",
            atomic=True,
            summary="pictures through the vision tower of Kimi K3, one token for 28 x 28 pixels",
        )
    ]
