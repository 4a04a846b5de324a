"""Registers the pipeline, the way any third party's plugin would."""

from watersmeet.plugins.hookspecs import hookimpl
from watersmeet.plugins.specs import PipelineSpec


@hookimpl
def register_pipelines() -> list[PipelineSpec]:
    return [
        PipelineSpec(
            name="video-to-spec",
            summary="a screen recording becomes a specification whose every claim names a time and a frame",
            # what the modality video reads, as its plugin says
            inputs=(
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
            pipeline="watersmeet.pipelines.video_to_spec.pipeline:VideoToSpec",
        )
    ]
