"""The sentences in which patterns, features and doubts are described, so that they need not be written by a model."""

import re

from watersmeet.pipelines.video_to_spec.markdown import clock
from watersmeet.pipelines.video_to_spec.spec import ACTIONS, Step

PATTERNS: dict[str, str] = {
    "modal": "A dialog opens above the page and has to be closed before the page can be used.",
    "toast": "A short note appears by itself and leaves after a while.",
    "dropdown": "A menu opens over the page and closes again.",
    "popover": "A small box with an explanation appears beside what it explains.",
    "tabs": "Panels of one place are shown in turn, and the page stays the same.",
    "pagination": "A long list is shown in parts that are chosen below it.",
    "inline validation": "A form names, beside the field, what is wrong with what was typed.",
    "required field": "A form names a field that has to be filled in and is empty.",
    "field format": "A field takes only what has a certain form.",
    "autosave": "Changes are saved without being asked for, and a note says so.",
    "busy state": "A button shows that it is at work and cannot be pressed until it is done.",
    "theme switch": "All colours change at once, and the page stays the same.",
    "drag": "Something is moved by dragging it.",
}
"""Names of patterns with what they mean; a specification may hold others."""
FEATURES: dict[str, str] = {
    "submit": "can be sent off from a form.",
    "busy": "is done at the press of a button.",
    "modal": "opens in a dialog.",
    "toast": "is done at the press of a button, and a note says so.",
}
"""Kinds of features, as the end of a sentence that begins with what the page calls it."""
NO_POINTER = "No pointer is shown, so what was acted on is judged by what changed."

_DOUBT = re.compile(rf"^Step (\d+) at [\d:.]+: ({'|'.join(ACTIONS)}) or ({'|'.join(ACTIONS)})\?$")


def feature(kind: str, name: str) -> str:
    """The description of a feature that the page calls `name`."""
    return f"“{name}” {FEATURES[kind]}"


def feature_kind(name: str, description: str) -> str | None:
    """The kind of a feature described by `feature`, None for any other description."""
    return next((kind for kind in FEATURES if description == feature(kind, name)), None)


def doubt(step: Step, other: str) -> str:
    """The question whether a step was not another action."""
    return f"Step {step.index} at {clock(step.start_s)}: {step.action} or {other}?"


def doubted(question: str) -> tuple[int, str] | None:
    """(number of the step, the other action) of a question that `doubt` asked, None for any other question."""
    found = _DOUBT.match(question)
    return (int(found[1]), found[3]) if found else None
