"""Registers the pipeline, the way any third party's plugin would."""

from watersmeet.plugins.hookspecs import hookimpl
from watersmeet.plugins.specs import PipelineSpec


@hookimpl
def register_pipelines() -> list[PipelineSpec]:
    return [
        PipelineSpec(
            name="screenshot-to-code",
            summary="a screenshot becomes HTML, Tailwind or React code, with a report that shows how close it is",
            inputs=("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff"),
            pipeline="watersmeet.pipelines.screenshot_to_code.pipeline:ScreenshotToCode",
        )
    ]
