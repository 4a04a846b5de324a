"""The English sentences of K3's option messages, read out of the checkpoint's `encoding_k3.py` without running it.

The file is parsed, never executed: every expression that is put together from constant text and inserted values becomes
a template, and a template is known by the words that the format itself fixes, such as `thinking_effort=`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from watersmeet.core.errors import CheckpointError, ConfigError

FILE = "encoding_k3.py"
_MOST_BYTES = 4 << 20

Wanted = str
"""What a sentence is for: see `Wording`."""


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Sentences by what they are for, each a tuple of texts between which the inserted value stands.

    Keys: "tools", "late tools" (inserted: the JSON list), "effort" (the level), "required", "none" (tool choice),
    "json_object", "json_schema" (inserted: the JSON schema). efforts: the levels that the file accepts.
    """

    sentences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    efforts: frozenset[str] = frozenset({"low", "high", "max"})
    source: str | None = None

    def say(self, wanted: str, value: str = "") -> str:
        """The sentence for `wanted` with `value` inserted. Raises ConfigError when the checkpoint does not bring it."""
        if wanted not in self.sentences:
            where = (
                f"{self.source} of this checkpoint does not hold" if self.source else f"without {FILE} there are not"
            )
            raise ConfigError(
                f"chat: {where} the official words for {_SHOWN[wanted]}, and none are invented; put {FILE} of the "
                "checkpoint beside its weights, or leave that out"
            )
        return value.join(self.sentences[wanted])


_SHOWN = {
    "tools": "declaring tools",
    "late tools": "declaring tools during a conversation",
    "effort": "thinking effort",
    "required": "tool_choice required",
    "none": "tool_choice none",
    "json_object": "response_format json_object",
    "json_schema": "response_format json_schema",
}


def read_wording(source: bytes, name: str = FILE) -> Wording:
    """The sentences of a file. What is not found is left out and missed when it is asked for.

    Raises CheckpointError when the file is no Python, or holds two different sentences for one purpose.
    """
    if len(source) > _MOST_BYTES:
        raise CheckpointError(f"{name}: {len(source)} bytes are too many for a file of sentences")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CheckpointError(f"{name}: cannot be parsed as Python ({error})") from error
    sentences: dict[str, tuple[str, ...]] = {}
    for template in _templates(tree):
        wanted = _purpose(template)
        if wanted is None or sentences.setdefault(wanted, template) == template:
            continue
        raise CheckpointError(
            f"{name}: holds two different sentences for {_SHOWN[wanted]}; it is of an unknown version"
        )
    efforts = _efforts(tree)
    return Wording(sentences=sentences, source=name, **({"efforts": efforts} if efforts else {}))


def _purpose(template: tuple[str, ...]) -> str | None:
    """What a template is for, by the words that the format fixes and by how many values it inserts."""
    text, inserted = "\0".join(template), len(template) - 1
    marks = {
        "effort": ("thinking_effort=\0", 1),
        "required": ("tool_choice=required", 0),
        "none": ("tool_choice=none", 0),
        "json_object": ("response_format=json_object", 0),
        "json_schema": ("response_format=json_schema", 1),
    }
    for wanted, (mark, count) in marks.items():
        if mark in text and inserted == count:
            return wanted
    if inserted == 1 and "```json\n\0" in text and text.startswith("#"):
        return "late tools" if text.startswith("##") else "tools"
    return None


def _templates(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Every outermost text expression, as the constant parts around the values that it inserts."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a comment, wherever it stands
        found = _template(node)
        if found is not None:
            yield found
        elif not isinstance(node, ast.JoinedStr):  # parts of a text that is not understood are no sentences
            waiting += ast.iter_child_nodes(node)


def _template(node: ast.AST) -> tuple[str, ...] | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return (node.value,)
    if isinstance(node, ast.JoinedStr):
        parts: tuple[str, ...] = ("",)
        for value in node.values:
            # {x} inserts a value; {x!r} and {x:>3} would change it, and then the sentence is not known
            if isinstance(value, ast.FormattedValue):
                if value.conversion != -1 or value.format_spec is not None:
                    return None
                parts = (*parts, "")
            else:
                inner = _template(value)
                if inner is None:
                    return None
                parts = _joined(parts, inner)
        return parts
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _template(node.left), _template(node.right)
        if left is None and right is None:
            return None
        # what is added to a text and is none itself is an inserted value
        return _joined(left or ("", ""), right or ("", ""))
    return None


def _joined(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    return (*left[:-1], left[-1] + right[0], *right[1:])


def _efforts(tree: ast.AST) -> frozenset[str] | None:
    """The set of levels, from an assignment of constant texts to a name that speaks of efforts."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if not any(isinstance(target, ast.Name) and "EFFORT" in target.id.upper() for target in targets):
            continue
        value = node.value.args[0] if isinstance(node.value, ast.Call) and node.value.args else node.value
        if isinstance(value, (ast.Set, ast.Tuple, ast.List)):
            found = [
                item.value for item in value.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)
            ]
            if found and len(found) == len(value.elts):
                return frozenset(found)
    return None
