"""Registers the image modality."""

from watersmeet.plugins import ModalitySpec, hookimpl


@hookimpl
def register_modalities() -> list[ModalitySpec]:
    """The image modality."""
    return [
        ModalitySpec(
            name="image",
            media_types=(
                "image/png",
                "image/jpeg",
                "image/webp",
                "image/gif",
                "image/bmp",
                "image/tiff",
                "image/x-icon",
                "image/x-portable-anymap",
            ),
            encoder="watersmeet.tokenizers.image.encoder:Encoder",
            embedder="watersmeet.tokenizers.image.embedder:Embedder",
            atomic=True,
            summary="patches of raw pixels at reduced scale, row by row",
        )
    ]
