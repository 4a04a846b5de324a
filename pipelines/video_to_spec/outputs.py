"""Everything that is written of a specification: spec.json, spec.md, frames, report.html and a Playwright test."""

import base64
import io
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2
from PIL import Image, ImageDraw

from watersmeet.pipelines.video_to_spec.flow import HIGH, WIDE, flow_of
from watersmeet.pipelines.video_to_spec.markdown import clock, crop_name, frame_name, in_words, spec_markdown
from watersmeet.pipelines.video_to_spec.skeleton import playwright_test
from watersmeet.pipelines.video_to_spec.spec import Spec, Step, write_spec

FrameAt = Callable[[float], Image.Image]
"""The picture that is shown at a time in seconds, upright and of the size that the specification names."""

THUMBNAIL = (480, 480)  # px, the most
_AROUND = 60  # px of the picture around what a step acts on
_RING = (225, 60, 40)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One cited frame as the report shows it: its number, time, and the picture as a data address."""

    frame: int
    t_s: float
    picture: str


def write_outputs(spec: Spec, frame_at: FrameAt, folder: Path) -> tuple[str, ...]:
    """Write all files into `folder`, which is there already; returns their names, the report first.

    `frame_at` is asked once for each of `wanted_times`, in this order, so one pass over a video can answer.
    """
    names = _write_frames(spec, frame_at, folder)
    write_spec(spec, folder / "spec.json")
    (folder / "spec.md").write_text(spec_markdown(spec), encoding="utf-8")
    (folder / "flow.spec.ts").write_text(playwright_test(spec), encoding="utf-8")
    (folder / "report.html").write_text(report_page(spec, folder), encoding="utf-8")
    return ("report.html", "spec.md", "spec.json", "flow.spec.ts", *names)


def wanted_times(spec: Spec) -> list[float]:
    """The times in seconds whose frames are shown in what is written, rising."""
    cited = {one.t_s for _, proof in spec.proofs() for one in proof}
    return sorted(cited | {screen.first_seen_s for screen in spec.screens} | {step.start_s for step in spec.steps})


def _write_frames(spec: Spec, frame_at: FrameAt, folder: Path) -> list[str]:
    """Thumbnails of screens and cited frames, and what each step acts on as it was before."""
    (folder / "frames").mkdir(exist_ok=True)
    whole: dict[float, set[str]] = defaultdict(set)
    parts: dict[float, list[Step]] = defaultdict(list)
    for screen in spec.screens:
        whole[screen.first_seen_s].add(screen.thumbnail)
    for _, proof in spec.proofs():
        for one in proof:
            whole[one.t_s].add(frame_name(one.frame))
    for step in spec.steps:
        parts[step.start_s].append(step)
    for t_s in wanted_times(spec):
        picture = frame_at(t_s).convert("RGB")
        if whole[t_s]:
            small = picture.copy()
            small.thumbnail(THUMBNAIL, Image.Resampling.LANCZOS)
            for name in whole[t_s]:
                small.save(folder / name)
        for step in parts[t_s]:
            cropped(picture, step).save(folder / crop_name(step))
    return sorted({name for names in whole.values() for name in names} | {crop_name(step) for step in spec.steps})


def cropped(picture: Image.Image, step: Step) -> Image.Image:
    """The part of `picture` that a step acts on, with a ring around it; all of it, smaller, where no box is known."""
    if step.box is None:
        small = picture.copy()
        small.thumbnail(THUMBNAIL, Image.Resampling.LANCZOS)
        return small
    x0, y0, x1, y1 = step.box
    left, top = max(0, int(x0) - _AROUND), max(0, int(y0) - _AROUND)
    right, bottom = min(picture.width, int(x1) + _AROUND), min(picture.height, int(y1) + _AROUND)
    part = picture.crop((left, top, right, bottom))
    ring = (x0 - left - 3, y0 - top - 3, x1 - left + 2, y1 - top + 2)
    ImageDraw.Draw(part).rounded_rectangle(ring, radius=5, outline=_RING, width=3)
    part.thumbnail(THUMBNAIL, Image.Resampling.LANCZOS)
    return part


def report_page(spec: Spec, folder: Path) -> str:
    """`report.html` from a specification and the pictures in `folder`: one file, without network and without scripts."""
    figures = {
        one.frame: Figure(frame=one.frame, t_s=one.t_s, picture=_address(folder / frame_name(one.frame)))
        for _, proof in spec.proofs()
        for one in proof
    }
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"clock": clock, "words": in_words}
    template = resources.files("watersmeet.pipelines.video_to_spec").joinpath("report.html.j2").read_text("utf-8")
    return environment.from_string(template).render(
        spec=spec,
        flow=flow_of(spec),
        wide=WIDE,
        high=HIGH,
        figures=[figures[number] for number in sorted(figures)],
        screens={screen.id: screen for screen in spec.screens},
        thumbnails={screen.id: _address(folder / screen.thumbnail) for screen in spec.screens},
        crops={step.index: _address(folder / crop_name(step)) for step in spec.steps},
    )


def _address(path: Path) -> str:
    """A picture as a data address; JPEG, which is a quarter of the size."""
    held = io.BytesIO()
    with Image.open(path) as picture:
        picture.convert("RGB").save(held, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(held.getvalue()).decode("ascii")
