"""Turns a layout tree into code: plain HTML and CSS, Tailwind classes, or a React project."""

from watersmeet.core.errors import UsageError
from watersmeet.pipelines.emit.elements import make_page
from watersmeet.pipelines.emit.html import write_html
from watersmeet.pipelines.emit.react import write_react
from watersmeet.pipelines.emit.tailwind import write_tailwind
from watersmeet.pipelines.layout.tree import Node

TARGETS = ("html", "tailwind", "react")


def emit(tree: Node, target: str = "html", title: str = "Page", width: float | None = None) -> dict[str, str]:
    """The files of a page, by name relative to the output folder; `index.html` is always one of them.

    `width` is the window width in px at which positions and line breaks match the tree's boxes; without it the root's own
    width. Layout is normal flow, flex and grid throughout: nothing is positioned absolutely. Pictures stay files: a node's
    `src` is written as it is. Raises `UsageError` for an unknown target.
    """
    if target not in TARGETS:
        raise UsageError(f"there is no target {target!r}; choose one of {', '.join(TARGETS)}")
    page = make_page(tree, title, width)
    return {"html": write_html, "tailwind": write_tailwind, "react": write_react}[target](page)
