"""A picture of a bar chart becomes CSV: a modality (texts and boxes of a chart) and the pipeline that uses it."""

from watersmeet.plugins import ModalitySpec, PipelineSpec, hookimpl


@hookimpl
def register_modalities():
    """What is seen in a chart."""
    return [
        ModalitySpec(
            name="chart-marks",
            encoder="watersmeet_chart_to_table.encode:Encoder",
            embedder="watersmeet_chart_to_table.encode:Embedder",
            atomic=True,
            summary="texts and boxes of a chart, one token each",
        )
    ]


@hookimpl
def register_pipelines():
    """The task."""
    return [
        PipelineSpec(
            name="chart-to-table",
            inputs=("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff"),
            pipeline="watersmeet_chart_to_table.pipeline:ChartToTable",
            own_model=True,
            summary="a picture of a bar chart becomes CSV",
        )
    ]
