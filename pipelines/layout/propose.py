"""Ask a layout model for the tree of a picture."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from PIL import Image

from watersmeet.core.generate import generate
from watersmeet.core.geometry import Box
from watersmeet.core.stream import Stream
from watersmeet.pipelines.layout import markup
from watersmeet.pipelines.layout.grammar import LayoutGrammar
from watersmeet.pipelines.layout.plausible import plausible
from watersmeet.pipelines.layout.prompt import prompt_spans
from watersmeet.pipelines.layout.regions import Regions
from watersmeet.pipelines.layout.repair import attach_missing
from watersmeet.pipelines.layout.tree import Node, Style
from watersmeet.pipelines.layout.windows import Window, cut_windows, scaled
from watersmeet.pipelines.models.local import LocalModel
from watersmeet.pipelines.models.threads import one_thread

# what the training pages were rendered at; wider pictures are shown to the model at this width
WIDTH, HEIGHT = 1280, 757
NARROW, NARROW_HEIGHT = 480, 844


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A tree in the picture's own pixels, the markup of each window, and what had to be mended."""

    tree: Node
    markups: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...]


def propose(
    model: LocalModel,
    picture: Image.Image | None,
    regions: Regions,
    *,
    show_regions: bool = True,
    max_tokens: int = 900,
    temperature: float = 0.0,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> Proposal:
    """The model's tree for `picture` with `regions`; every text region is in it, placed by geometry if need be.

    `picture=None` hides the pixels and `show_regions=False` the regions from the model (ablations).
    """
    factor = min(1.0, WIDTH / regions.width)
    seen = scaled(regions, factor)
    windows = cut_windows(seen, height=NARROW_HEIGHT if seen.width <= NARROW else HEIGHT)
    shown = picture.resize((seen.width, seen.height), Image.Resampling.BOX) if picture and factor < 1 else picture
    children: list[Node] = []
    markups: list[tuple[str, ...]] = []
    warnings: list[str] = []
    for i, window in enumerate(windows):
        crop = shown.crop((0, window.top, seen.width, window.bottom)) if shown else None
        written = _write(model, crop, window, show_regions, max_tokens, temperature, seed)
        whole = _window_in_picture(window, factor, regions)
        decoded = markup.decode(written, whole)
        tree = attach_missing(plausible(decoded.tree, whole), whole, decoded.unused_texts)
        children += [child.shifted(0, window.top / factor) for child in tree.children]
        markups.append(tuple(written))
        warnings += decoded.warnings
        if decoded.unused_texts:
            warnings.append(f"{len(decoded.unused_texts)} text lines were placed by geometry, not by the model")
        progress((i + 1) / len(windows))
    page = Box(x0=0, y0=0, x1=regions.width, y1=regions.height)
    tree = Node(kind="page", box=page, style=Style(background=regions.background), children=tuple(children))
    return Proposal(tree=tree, markups=tuple(markups), warnings=tuple(warnings))


def _window_in_picture(window: Window, factor: float, regions: Regions) -> Regions:
    """The window's regions in the picture's own pixels."""
    return window.regions if factor == 1.0 else scaled(window.regions, 1.0 / factor)


def _write(
    model: LocalModel,
    picture: Image.Image | None,
    window: Window,
    show_regions: bool,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> list[str]:
    text = model.encoders["text"]
    spans = prompt_spans(model.encoders, picture, window.regions.to_json() if show_regions else None)
    mask = _grammar(text).mask(
        texts=len(window.regions.texts) if show_regions else 0,
        shapes=len(window.regions.shapes) if show_regions else 0,
    )
    with one_thread():
        results = generate(
            model.model,
            [Stream(spans=tuple(spans))],
            max_new_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            mask=[mask],
            eos_id=text.eos_id,
        )
    names = {i: name for name, i in text.symbols.items()}
    return [names[i] for i in results[0].ids if i != text.eos_id]


@lru_cache(maxsize=2)
def _grammar(text: Any) -> LayoutGrammar:
    return LayoutGrammar(text.symbols, text.vocab_size, text.eos_id)
