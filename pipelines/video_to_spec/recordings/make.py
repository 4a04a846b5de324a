"""One recording from a seed: which pages, which difficulties, what happens, the frames, and what is known of them."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from PIL import Image, ImageChops

from watersmeet.core.errors import ConfigError, RenderError
from watersmeet.pipelines.browser.render import Browser
from watersmeet.pipelines.data.generator.pages import site
from watersmeet.pipelines.data.generator.words import Words
from watersmeet.pipelines.data.packages import PACKAGES, Package, pages_of
from watersmeet.pipelines.data.pointer import drawn_style
from watersmeet.pipelines.data.recording import Recording, write_video
from watersmeet.pipelines.video_to_spec.recordings.app import BASE, app_page
from watersmeet.pipelines.video_to_spec.recordings.director import Act, Director, Pace, without_pointer
from watersmeet.pipelines.video_to_spec.recordings.stage import APP, Dress, opened
from watersmeet.pipelines.video_to_spec.recordings.told import claims_of
from watersmeet.pipelines.video_to_spec.recordings.walk import Habits, Walk
from watersmeet.pipelines.video_to_spec.sentences import NO_POINTER
from watersmeet.pipelines.video_to_spec.spec import Evidence, Screen, Source, Spec, Step
from watersmeet.pipelines.video_to_spec.truth import Truth, write_truth

SPLITS = ("train", "val")
PLACES = {
    "train": ("startbootstrap-sb-admin", "startbootstrap-simple-sidebar", "libjs-spectre-docs", "mkdocs-doc"),
    "val": ("startbootstrap-sb-admin-2", "material-dashboard"),
}
"""Packages whose pages are acted on in each split; those of one split are in no other."""
GENERATED, SITE = "generated", "site"
"""What else training recordings show: a product that behaves (`app.py`), and pages as layouts are learnt from, dressed."""
_SITE_PAGES = 4
_CURSORS = {"train": 0.65, "val": 0.8}
_FIELDS = {"train": 2.5, "val": 1.0}
_ESCAPE = {"train": 0.35, "val": 1.0}
# what is hard to learn, steps without a pointer and typed texts, is shown oftener than it is asked for; and menus whose entries
# lead out of a package are not always left by the key, or a model learns that menus are closed so
_SIZES = ((1280, 720), (1280, 720), (1280, 720), (1024, 768), (1440, 900), (960, 600))


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What makes one recording what it is; everything else follows from the seed."""

    size: tuple[int, int]
    rate: int
    seconds: float
    cursor: bool
    variable_rate: bool
    pixel_aspect: Fraction
    rotation: int
    start_offset_us: int
    crf: int
    gap: float
    pace: Pace
    package: str  # GENERATED, SITE or the name of a package


def wishes(seed: int, split: str, seconds: float | None = None) -> Wishes:
    """Draw what the recording number `seed` of a split shall be; about `seconds` long if that is given."""
    if split not in SPLITS:
        raise ConfigError(f"split is {split!r}, expected train or val")
    rng = random.Random(f"wishes {split} {seed}")
    package = rng.choice(PLACES[split])
    if split == "train":
        package = rng.choices((package, SITE, GENERATED), (0.35, 0.35, 0.3))[0]
    length = rng.uniform(14, 40)
    turn = rng.choice((0,) * 12 + (90, 180, 270))
    aspect = Fraction(1) if turn else rng.choice((Fraction(1),) * 9 + (Fraction(4, 3), Fraction(5, 6)))
    return Wishes(
        size=rng.choice(_SIZES),
        rate=rng.choice((30, 30, 30, 25, 15)),
        seconds=seconds or length,
        cursor=rng.random() < _CURSORS[split],
        variable_rate=rng.random() < 0.3,
        pixel_aspect=aspect,
        rotation=turn,
        start_offset_us=rng.choice((0, 0, 0, 0, 1_400_000)),
        crf=rng.choice((18, 23, 23, 28)),
        gap=rng.choice((0.0, 0.0, 0.0, 6.0, 12.0)),
        pace=Pace(
            fade=rng.choice((0.0, 0.0, 0.1, 0.2)), letters=rng.uniform(4, 9), mistakes=rng.choice((0.0, 0.04, 0.12))
        ),
        package=package,
    )


def make(seed: int, split: str, packages: Path, browser: Browser, out: Path, *, seconds: float | None = None) -> Truth:
    """Write `out` (.mp4) and beside it the truth (.json). The same arguments give the same frames and the same truth.

    Raises RenderError when a page cannot be acted on, or its package is not there.
    """
    wish = wishes(seed, split, seconds)
    rng = random.Random(f"recording {split} {seed}")
    style = drawn_style(random.Random(f"pointer {split} {seed}"))
    recording = Recording(size=wish.size, rate=wish.rate, pointer=style)
    pages = _made(wish, seed, packages)
    paths = list(pages) or _paths(wish.package, packages)
    first = rng.choice(paths)
    dress = None if wish.package == GENERATED else _dress(rng, tuple(pages))
    with opened(browser, wish.size, packages, pages, dress) as stage:
        stage.open(first, settle_ms=3000)
        director = Director(stage, recording, rng, wish.pace, cursor=wish.cursor)
        habits = Habits(
            seconds=wish.seconds,
            fields=_FIELDS[split],
            escape=_ESCAPE[split],
            gap=wish.gap,
            elsewhere=_beside(first, paths),
            known=frozenset(paths) - {APP},
        )
        Walk(director, rng, habits).run()
    times: list[int] = []
    write_video(
        out,
        _encoded(recording, wish, times),
        crf=wish.crf,
        rate=wish.rate,
        pixel_aspect=wish.pixel_aspect,
        rotation=wish.rotation,
    )
    visited = tuple(dict.fromkeys(path.removeprefix("/packages/").removeprefix("/") for path in director.visited))
    truth = told(director, wish, times, out.name, split, seed, visited)
    write_truth(truth, out.with_suffix(".json"))
    return truth


def _package(name: str, packages: Path) -> Package:
    found = next(item for item in PACKAGES if item.name == name)
    if not (packages / found.folder).is_dir():
        raise RenderError(f"{packages / found.folder} is missing; fetch it with `watersmeet data fetch --only {name}`")
    return found


def _made(wish: Wishes, seed: int, packages: Path) -> dict[str, str]:
    """Made-up pages that the recording may show, by path; none if it shows those of a package."""
    if wish.package == GENERATED:
        return {APP: app_page(seed, packages, wish.size[0])}
    if wish.package == SITE:
        return {f"/page-{i + 1}.html": html for i, html in enumerate(site(seed, packages, BASE, _SITE_PAGES))}
    return {}


def _paths(name: str, packages: Path) -> list[str]:
    """Paths of the pages that a recording of this package may show."""
    found = [f"/packages/{page.relative_to(packages)}" for page in pages_of(_package(name, packages), packages)]
    if not found:
        raise RenderError(f"{packages / name} holds no page that can be shown")
    return found


def _dress(rng: random.Random, pages: tuple[str, ...]) -> Dress:
    words = Words(rng)
    seed, titles = rng.randrange(1, 2**31 - 1), tuple(words.title(2, 4) for _ in range(24))
    return Dress(seed=seed, share=0.8 if pages else 0.5, words=titles, pages=pages)


def _beside(first: str, paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if path != first and Path(path).parent == Path(first).parent)


def _encoded(recording: Recording, wish: Wishes, times: list[int]) -> Iterator[tuple[int, Image.Image]]:
    """Frames as they are stored, turned and squeezed; what time each is shown goes to `times`, from 0."""
    count = round(recording.length * wish.rate)
    last: Image.Image | None = None
    kept: Image.Image | None = None
    for number, (time_us, picture) in enumerate(recording.frames()):
        if last is None or kept is None or ImageChops.difference(picture, last).getbbox() is not None:
            last, kept = picture, stored(picture, wish.pixel_aspect, wish.rotation)
        elif wish.variable_rate and number < count - 1:
            # recorders that write on change write nothing while nothing changes; the last frame says how long that was
            continue
        times.append(time_us)
        yield time_us + wish.start_offset_us, kept


def stored(picture: Image.Image, pixel_aspect: Fraction, rotation: int) -> Image.Image:
    """The picture that shows as `picture` once it is turned by `rotation` degrees and its pixels are that wide."""
    width, height = picture.size
    if pixel_aspect != 1:
        # the longer side of a pixel is what a reader keeps, so that nothing is lost
        size = (round(width / pixel_aspect), height) if pixel_aspect > 1 else (width, round(height * pixel_aspect))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    return picture.rotate(-rotation, expand=True) if rotation else picture


def told(
    director: Director, wish: Wishes, times: Sequence[int], path: str, split: str, seed: int, pages: tuple[str, ...]
) -> Truth:
    """Everything that is known, with times of acts as frames that show them."""
    end_s = times[-1] / 1e6 + 1 / wish.rate
    acts = [act if wish.cursor else without_pointer(act) for act in director.acts]
    screens = tuple(
        Screen(id=s.id, title=s.title, first_seen_s=_from(s.first_seen, times).t_s, thumbnail=f"frames/{s.id}.png")
        for s in director.screens.values()
        if s.first_seen <= times[-1] / 1e6
    )
    known = {screen.id for screen in screens}
    steps = tuple(
        _step(i + 1, act, times, wish, end_s)
        for i, act in enumerate(a for a in acts if {a.from_screen, a.to_screen} <= known)
    )
    features, patterns = claims_of(acts, director.shown, times)
    spec = Spec(
        source=Source(path=path, duration_s=end_s, frames=len(times), width=wish.size[0], height=wish.size[1]),
        screens=screens,
        steps=steps,
        features=features,
        patterns=patterns,
        open_questions=() if wish.cursor else (NO_POINTER,),
    )
    return Truth(
        spec=spec,
        times_us=tuple(times),
        shown=tuple(one for one in director.shown if one.start_s < end_s),
        cursor=wish.cursor,
        variations=tuple(sorted(director.variations | _named(wish))),
        pages=pages,
        split=split,
        seed=seed,
    )


def _named(wish: Wishes) -> set[str]:
    chosen = {
        "no pointer": not wish.cursor,
        "variable rate": wish.variable_rate,
        "pixel aspect": wish.pixel_aspect != 1,
        "rotation": wish.rotation != 0,
        "start offset": wish.start_offset_us != 0,
        "fading": wish.pace.fade > 0,
    }
    return {name for name, is_so in chosen.items() if is_so}


def _at(time: float, times: Sequence[int]) -> Evidence:
    """The frame that is shown at `time`."""
    frame = max(0, bisect_right(times, time * 1e6 + 0.5) - 1)
    return Evidence(t_s=times[frame] / 1e6, frame=frame)


def _from(time: float, times: Sequence[int]) -> Evidence:
    """The first frame that shows what is there from `time` on."""
    frame = min(len(times) - 1, bisect_left(times, time * 1e6 - 0.5))
    return Evidence(t_s=times[frame] / 1e6, frame=frame)


def _step(index: int, act: Act, times: Sequence[int], wish: Wishes, end_s: float) -> Step:
    proof = dict.fromkeys((_at(act.start, times), _from(act.end, times)))
    box = None
    if act.box is not None:
        width, height = wish.size
        box = (
            max(0.0, act.box[0]),
            max(0.0, act.box[1]),
            min(float(width), act.box[2]),
            min(float(height), act.box[3]),
        )
        box = box if box[0] < box[2] and box[1] < box[3] else None
    return Step(
        index=index,
        start_s=round(min(act.start, end_s), 6),
        end_s=round(min(act.end, end_s), 6),
        action=act.action,
        target=act.target,
        text=act.text,
        box=box,
        from_screen=act.from_screen,
        to_screen=act.to_screen,
        evidence=tuple(proof),
        confidence=1.0,
    )
