"""The same job given to a large model, behind a server or loaded here: it is shown key frames and writes JSON, of which only
what the recording proves is kept."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from watersmeet.core.errors import RemoteError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.models.remote import Part
from watersmeet.pipelines.video_to_spec.answer import find_object
from watersmeet.pipelines.video_to_spec.checked import Checked, checked
from watersmeet.pipelines.video_to_spec.keyframes import Chosen, KeyFrame, choose, pictures, shown_scale
from watersmeet.pipelines.video_to_spec.sentences import PATTERNS
from watersmeet.pipelines.video_to_spec.spec import published_schema

if TYPE_CHECKING:
    from watersmeet.pipelines.video_to_spec.watch.sight import Sight

PROMPT = """These are frames of a screen recording of a product, {seconds:.3f} s long. Each follows a line with its number and \
the time from which it is shown. They were taken before and after everything that changed; between them nothing new is seen.

Write what the user does and what the product can do, as JSON of the schema below.
- A screen is a page. Scrolling, open menus, dialogs and other tabs of a panel make no new one, and one met again keeps its id. \
first_seen_s is the time of a frame above.
- A step begins at the press and ends when the page has settled. What happens by itself (spinners, clocks, notes that leave) is \
no step.
- target is the text of what was acted on as it read before; of a field its label or placeholder; of an icon null. text is the \
final text of "type", the key of "key", the direction of "scroll" (down, up, left, right), else null.
- box is left, top, right and bottom of what was acted on, in px of the frames above, which are {width} x {height} px; null if \
unknown.
- evidence is a list of frames that show the claim, with number and time copied from the lines above. A claim whose evidence does \
not exist is thrown away.
- Names of patterns are, where they fit: {patterns}.
- What two readings explain equally well is an open question.

Answer with the JSON object only. The schema:
{schema}"""


class Talker(Protocol):
    """A model that is asked in words: a server, a local one that holds conversations, or what stands for one in a test."""

    @property
    def name(self) -> str: ...

    def ask_parts(self, parts: Sequence[Part], *, max_tokens: int, schema: Mapping[str, Any] | None = None) -> str: ...


def ask_in_words(model: Talker, path: Path, sight: Sight, encoder: Any, *, key_frames: int, max_tokens: int) -> Checked:
    """Show key frames of `path` to a model and check what it answers; a model that sees no pictures is told what was read.

    encoder: of the modality `video`. Raises RemoteError when the server fails or the answer holds no specification.
    """
    chosen = choose(sight, key_frames)
    scale = shown_scale(sight.source.width, sight.source.height)
    blind = not getattr(model, "sees", True)
    parts: list[Part] = []
    shown = [] if blind else pictures(encoder, path, chosen.frames, scale)
    for number, frame in enumerate(chosen.frames):
        parts.append(_line(frame, scale, read=blind))
        parts += shown[number : number + 1]
    schema = answer_schema()
    parts.append(
        PROMPT.format(
            seconds=sight.source.duration_s,
            width=max(1, round(sight.source.width * scale)),
            height=max(1, round(sight.source.height * scale)),
            patterns=", ".join(PATTERNS),
            schema=json.dumps(schema, separators=(",", ":")),
        )
    )
    text = model.ask_parts(parts, max_tokens=max_tokens, schema=schema)
    return _read(text, model, sight, chosen, scale)


def _read(text: str, model: Talker, sight: Sight, chosen: Chosen, scale: float) -> Checked:
    found = find_object(text)
    if found is None:
        url = getattr(model, "url", "")
        place = f" at {url}" if url else ""
        start = " ".join(text.split())[:120]
        raise RemoteError(f"the model {model.name!r}{place} answered without a specification; it begins {start!r}")
    answer, cut_off = found
    result = checked(answer, sight.source, sight.times_us, scale=1.0 / scale)
    warnings = list(result.warnings)
    if cut_off:
        warnings.insert(0, "the model's answer ends in the middle; what stands before was kept (see --set max_answer)")
    if chosen.left_out:
        warnings.append(
            f"{chosen.left_out} of {chosen.changes} changes were not shown to the model (see --set key_frames)"
        )
    seen = {frame.frame for frame in chosen.frames}
    unseen = sum(any(one.frame not in seen for one in proof) for _, proof in result.spec.proofs())
    if unseen:
        warnings.append(f"{unseen} claims of the model cite frames of the recording that it was not shown")
    return Checked(**{**vars(result), "warnings": tuple(warnings)})


def answer_schema() -> dict[str, Any]:
    """The published schema without what is known already: the recording, numbers of steps, and files of thumbnails."""
    schema = copy.deepcopy(published_schema())
    parts = schema["$defs"]
    for part, name in ((schema, "source"), (parts["Step"], "index"), (parts["Screen"], "thumbnail")):
        del part["properties"][name]
        part["required"].remove(name)
    del parts["Source"]
    return schema


def _line(frame: KeyFrame, scale: float, *, read: bool) -> str:
    line = f"Frame {frame.frame}, {frame.time_us / 1e6:.3f} s"
    if frame.changed:
        line += "; changed since the frame above: " + ", ".join(_edges(box, scale) for box in frame.changed)
    if read:
        texts = ", ".join(f"{json.dumps(text, ensure_ascii=False)} {_edges(box, scale)}" for text, box in frame.read)
        line += f"; it cannot be shown to you, but this was read of what changes: {texts or 'nothing'}"
    return line


def _edges(box: Box, scale: float) -> str:
    return json.dumps([round(edge * scale) for edge in (box.x0, box.y0, box.x1, box.y1)])
