"""Registers the video modality."""

from watersmeet.plugins import ModalitySpec, hookimpl


@hookimpl
def register_modalities() -> list[ModalitySpec]:
    """The video modality."""
    return [
        ModalitySpec(
            name="video",
            media_types=(
                "video/mp4",
                "video/quicktime",
                "video/webm",
                "video/x-matroska",
                "video/x-msvideo",
                "video/x-flv",
                "video/mp2t",
                "video/mpeg",
                "video/ogg",
                "video/x-ms-wmv",
                "video/3gpp",
            ),
            encoder="watersmeet.tokenizers.video.encoder:Encoder",
            embedder="watersmeet.tokenizers.video.embedder:Embedder",
            atomic=True,
            summary="patches of a screen recording that change, with place and time",
        )
    ]
