"""The vocabulary of models of both tasks: that of layout models, with the symbols of the step markup behind its ids.

The model file lies beside this module; `build` made it and writes it again when symbols change.
"""

from collections.abc import Callable
from importlib import resources
from pathlib import Path

from watersmeet.pipelines.layout.vocabulary import FILE
from watersmeet.pipelines.layout.vocabulary import tokenizer_model as of_layouts
from watersmeet.pipelines.video_to_spec.markup import own_symbols


def tokenizer_model() -> bytes:
    """Bytes of the sentencepiece model."""
    return resources.files("watersmeet.pipelines.video_to_spec").joinpath(FILE).read_bytes()


def build(add: Callable[..., bytes], out_path: Path) -> None:
    """Write the vocabulary to `out_path` with `add` (the text modality's `with_symbols`)."""
    out_path.write_bytes(add(of_layouts(), own_symbols()))
