"""`spec.md`: the specification to read, with the time of every claim."""

import re
from collections.abc import Iterator, Sequence

from watersmeet.pipelines.video_to_spec.spec import Claim, Evidence, Screen, Spec, Step

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+|~!$&-])")


def plain(text: str) -> str:
    """`text` with nothing that Markdown or HTML would read as more than text, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def clock(t_s: float) -> str:
    """Minutes, seconds and thousandths: 75.25 s is `1:15.250`."""
    milliseconds = round(t_s * 1000)
    return f"{milliseconds // 60_000}:{milliseconds // 1000 % 60:02d}.{milliseconds % 1000:03d}"


def crop_name(step: Step) -> str:
    """File of the part of the picture that a step acts on, below the folder of the specification."""
    return f"frames/step-{step.index:03d}.png"


def frame_name(frame: int) -> str:
    """File of a cited frame, below the folder of the specification."""
    return f"frames/frame-{frame:06d}.png"


def in_words(step: Step) -> str:
    """What a step does, as one clause."""
    where = f"“{step.target}”" if step.target else "something without a text"
    match step.action:
        case "click":
            return f"Click {where}"
        case "type":
            return f"Type “{step.text}” into {where}" if step.text else f"Type into {where}"
        case "scroll":
            return f"Scroll {step.text}" if step.text else "Scroll"
        case "key":
            return f"Press {step.text}" if step.text else "Press a key"
        case "hover":
            return f"Rest the pointer on {where}"
        case "navigate":
            return f"Go to {where}" if step.target else "Go to another page"
        case _:
            return f"Wait for {where}" if step.target else "Wait"


def spec_markdown(spec: Spec) -> str:
    """The whole document."""
    return "\n".join(_document(spec)) + "\n"


def _document(spec: Spec) -> Iterator[str]:
    source = spec.source
    yield f"# Specification from {plain(source.path)}"
    yield ""
    yield (
        f"{clock(source.duration_s)} long, {source.frames:,} frames of {source.width} x {source.height} px; "
        f"{len(spec.screens)} screens, {len(spec.steps)} steps. Times are minutes, seconds and thousandths from the start."
    )
    yield from _section("Screens", _screens(spec.screens))
    yield from _section("Steps", _steps(spec.steps, spec.screens))
    yield from _section("Features", _claims(spec.features))
    yield from _section("Interaction patterns", _claims(spec.patterns))
    yield from _section("Open questions", [f"- {plain(question)}" for question in spec.open_questions])


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""
    yield from lines or ["None."]


def _screens(screens: Sequence[Screen]) -> list[str]:
    if not screens:
        return []
    rows = [f"| {s.id} | {plain(s.title)} | {clock(s.first_seen_s)} | ![{s.id}]({s.thumbnail}) |" for s in screens]
    return ["| id | title | first seen | |", "|---|---|---|---|", *rows]


def _steps(steps: Sequence[Step], screens: Sequence[Screen]) -> list[str]:
    if not steps:
        return []
    titles = {screen.id: screen.title for screen in screens}
    rows = []
    for step in steps:
        moved = f" → {plain(titles[step.to_screen])}" if step.to_screen != step.from_screen else ""
        rows.append(
            f"| {step.index} | {clock(step.start_s)} – {clock(step.end_s)} | {plain(in_words(step))} "
            f"| {plain(titles[step.from_screen])}{moved} | {step.confidence:.2f} | {_proof(step.evidence)} |"
        )
    return ["| # | time | what | where | confidence | seen at |", "|---|---|---|---|---|---|", *rows]


def _claims(claims: Sequence[Claim]) -> list[str]:
    return [f"- **{plain(c.name)}**: {plain(c.description)} Seen at {_proof(c.evidence)}." for c in claims]


def _proof(evidence: Sequence[Evidence]) -> str:
    return ", ".join(f"[{clock(e.t_s)}]({frame_name(e.frame)})" for e in evidence)
