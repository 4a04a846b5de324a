"""A screenshot, or its regions, to one token for each region. Shapes: n regions, F feature columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from PIL import Image

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.core.stream import Span, content_key
from watersmeet.tokenizers.regions import features
from watersmeet.tokenizers.regions.boxes import measure_box
from watersmeet.tokenizers.regions.describe import arrange_nested, describe
from watersmeet.tokenizers.regions.glyphs import TextLook, coverage, ink_and_paper, measure_text, measure_texts
from watersmeet.tokenizers.regions.shapes import as_array, find_shapes

RGB = tuple[int, int, int]

VERSION = 1
"""Part of every key; raised when equal regions and settings would give other tokens than before."""

DEFAULTS: dict[str, Any] = {
    "max_texts": 256,
    "max_shapes": 160,
    "buckets": 4096,
    "width": 192,
    "offset_t": 0,
    "offset_s": 0,
}
"""Settings and their defaults.

max_texts, max_shapes  most regions of one item, and the size of the tables of reference indices
buckets                number of word hashes
width                  inner width of the embedder
offset_t, offset_s     added to the reference index of texts and shapes, modulo the limits (training augmentation); an
                       item may carry its own under the same names
"""


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with defaults filled in. Raises ConfigError for an unknown name or a value out of range."""
    given = {name: value for name, value in settings.items() if name != "files"}
    if unknown := sorted(set(given) - set(DEFAULTS)):
        raise ConfigError(f"regions settings have unknown name {unknown[0]!r}; names are {', '.join(DEFAULTS)}")
    full = DEFAULTS | given
    for name, value in full.items():
        least = 0 if name.startswith("offset") else 2
        if not isinstance(value, int) or value < least:
            raise ConfigError(f"regions setting {name} is {value!r}, expected an integer of at least {least}")
    if full["max_shapes"] >= features.COLUMNS["parent"]:
        raise ConfigError(
            f"regions setting max_shapes is {full['max_shapes']}, expected at most {features.COLUMNS['parent'] - 1}"
        )
    return full


class Encoder:
    """Encodes the plain form of a `Regions` record, or a picture, which is read first (text recognition: seconds).

    settings: see `DEFAULTS`. There are no files. The measuring functions of this room are attributes, so that a
    pipeline can use them through the registry: `describe`, `read`, `text_reader`, `find_shapes`, `measure_text`, `measure_texts`,
    `measure_box`, `ink_of`.
    """

    describe = staticmethod(describe)
    measure_box = staticmethod(measure_box)
    find_shapes = staticmethod(find_shapes)

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = complete(settings or {})
        self.files: dict[str, bytes] = {}

    @property
    def max_tokens(self) -> int:
        """Most tokens one item can give."""
        return self.settings["max_texts"] + self.settings["max_shapes"]

    @staticmethod
    def measure_text(image: Any, box: tuple[float, float, float, float], text: str) -> TextLook:
        """Colours, size, weight and family of one line of text in a picture."""
        return measure_text(as_array(image), box, text)

    @staticmethod
    def measure_texts(image: Any, texts: Sequence[tuple[tuple[float, float, float, float], str]]) -> list[TextLook]:
        """The same for all lines of a page, (box, text) each: their families are decided together."""
        return measure_texts(as_array(image), texts)

    @staticmethod
    def ink_of(crop_hw3: Any) -> tuple[RGB, RGB, bool, Any]:
        """(ink colour, paper colour, paper is flat, coverage [h, w] float32 0..1) of a uint8 crop [h, w, 3]."""
        ink, paper, flat = ink_and_paper(crop_hw3)
        return ink, paper, flat, coverage(crop_hw3, ink, paper)

    def shift(self, data: torch.Tensor, offset_t: int, offset_s: int) -> torch.Tensor:
        """A copy of encoded rows [n, F] whose reference and parent indices are moved on, modulo the limits.

        Equal to encoding the same regions with these offsets added; needs no regions, so cached rows can be varied.
        """
        out = data.clone()
        limit_t, limit_s = self.settings["max_texts"], self.settings["max_shapes"]
        is_text = data[:, 0] == 0
        out[:, -1] = torch.where(is_text, (data[:, -1] + offset_t) % limit_t, (data[:, -1] + offset_s) % limit_s)
        column = list(features.COLUMNS).index("parent")
        parent = data[:, column]
        out[:, column] = torch.where(parent > 0, 1 + (parent - 1 + offset_s) % limit_s, parent)
        return out

    @staticmethod
    def read(image: Image.Image) -> dict[str, Any]:
        """Regions of a picture whose texts are not known: recognise them, then `describe`."""
        from watersmeet.tokenizers.regions.read import read

        return read(image)

    @staticmethod
    def text_reader() -> Callable[[Any], list[dict[str, Any]]]:
        """A function that gives the texts alone of a part of a picture, as records of `read`, in no certain order; boxes around
        the ink. It is for the pictures of one recording: a line that was read before is not read again."""
        from watersmeet.tokenizers.regions.ocr import ReadLines
        from watersmeet.tokenizers.regions.read import read_texts

        return partial(read_texts, memory=ReadLines())

    def encode(self, item: Mapping[str, Any] | Image.Image) -> list[Span]:
        """One span: data [n, F] int64 (see `features`), coords [n, 4] int64 (x0, y0, x1, y1 px), in reading order.

        Raises DecodeError when the item is not a regions record, or holds more regions than the settings allow.
        """
        regions = self.read(item) if isinstance(item, Image.Image) else item
        try:
            rows, boxes, source = self._rows(regions)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DecodeError(
                f"regions: the item is not a regions record ({type(error).__name__}: {error}); "
                "expected width, height, texts and shapes as `describe` gives them"
            ) from error
        data = torch.tensor(rows, dtype=torch.int64).reshape(-1, features.FEATURES)
        coords = torch.tensor(boxes, dtype=torch.int64).reshape(-1, 4)
        key = content_key("regions", VERSION, self.settings, data, coords)
        return [
            Span(
                modality="regions",
                data=data,
                coords=coords,
                key=key,
                source=tuple(source),
            )
        ]

    def _rows(self, regions: Mapping[str, Any]) -> tuple[list[list[int]], list[list[int]], Sequence[Any]]:
        texts, shapes = regions["texts"], regions["shapes"]
        limit_t, limit_s = self.settings["max_texts"], self.settings["max_shapes"]
        if len(texts) > limit_t or len(shapes) > limit_s:
            raise DecodeError(
                f"regions: {len(texts)} texts and {len(shapes)} shapes, at most {limit_t} and {limit_s} fit; "
                "cut the picture into windows first"
            )
        offset_t = int(regions.get("offset_t", self.settings["offset_t"]))
        offset_s = int(regions.get("offset_s", self.settings["offset_s"]))
        rows, boxes, source = [], [], []
        for kind, index, depth, parent in arrange_nested(regions):
            host = 0 if parent < 0 else 1 + (parent + offset_s) % limit_s
            if kind == "t":
                record = texts[index]
                reference = (index + offset_t) % limit_t
                rows.append(features.text_row(record, depth, host, reference, self.settings["buckets"]))
            else:
                record = shapes[index]
                rows.append(features.shape_row(record, depth, host, (index + offset_s) % limit_s))
            box = [max(0, round(record["box"][side])) for side in ("x0", "y0", "x1", "y1")]
            boxes.append(box)
            source.append((f"{kind}{index}", tuple(box)))
        return rows, boxes, source
