"""The stream, the model, generation, checkpoints and training; knows no modality and no task."""

if __name__ != "watersmeet.core":
    raise ImportError(f"import this package as watersmeet.core, not as {__name__!r}")
