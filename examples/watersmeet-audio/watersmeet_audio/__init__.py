"""Sound for watersmeet: frames of a log-mel spectrogram become tokens."""

from watersmeet.plugins import ModalitySpec, hookimpl


@hookimpl
def register_modalities():
    """The audio modality."""
    return [
        ModalitySpec(
            name="audio",
            media_types=("audio/wav", "audio/x-wav", "audio/flac", "audio/mpeg", "audio/ogg"),
            encoder="watersmeet_audio.encode:Encoder",
            embedder="watersmeet_audio.encode:Embedder",
            summary="sound as log-mel frames with their times",
        )
    ]
