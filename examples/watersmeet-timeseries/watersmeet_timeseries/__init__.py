"""Series of numbers for watersmeet: patches of samples become tokens."""

from watersmeet.plugins import ModalitySpec, hookimpl


@hookimpl
def register_modalities():
    parts = {"encoder": "watersmeet_timeseries.series:Encoder", "embedder": "watersmeet_timeseries.series:Embedder"}
    return [ModalitySpec(name="timeseries", media_types=("text/csv",), atomic=True, **parts)]
