"""The prompt of a layout model: picture patches, then regions, then the symbol that opens the answer.

Training and use build their streams here, so that they cannot differ.
"""

from collections.abc import Mapping
from typing import Any

from PIL import Image

from watersmeet.core.stream import Span, Stream, supervise
from watersmeet.pipelines.layout import markup


def prompt_spans(
    encoders: Mapping[str, Any], picture: Image.Image | None, regions: dict[str, Any] | None
) -> list[Span]:
    """Spans of the prompt; `encoders` has "image", "regions" and "text". A None picture or regions is left out.

    `regions` is the plain form of `watersmeet.pipelines.layout.regions.Regions` (its `to_json`).
    """
    spans: list[Span] = []
    if picture is not None:
        spans += encoders["image"].encode(picture)
    if regions is not None:
        spans += encoders["regions"].encode(regions)
    return [*spans, encoders["text"].encode_markup([markup.OPEN])]


def training_stream(encoders: Mapping[str, Any], prompt: list[Span], written: list[str]) -> Stream:
    """`prompt` followed by the markup `written` and the end symbol, with every symbol after the prompt to be learnt."""
    answer = encoders["text"].encode_markup([*written, "</s>"])
    return supervise([*prompt, answer], [False] * len(prompt) + [True])
