"""Names of the control slots that follow the ranks.

Two generations use one file of ranks and give the same ids different names, so a table belongs to a generation and the
two are never mixed. Ids are counted from the number of ranks (163,584 in official files), so small vocabularies of the
same layout work too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from watersmeet.core.errors import CheckpointError, ConfigError

SLOTS = 256
"""Control slots of every official vocabulary."""

TOKENIZER_CONFIG = "tokenizer_config.json"

_SHARED = {
    0: "[BOS]",
    1: "[EOS]",
    9: "[EOT]",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    254: "[UNK]",
    255: "[PAD]",
}

TABLES: dict[str, dict[int, str]] = {
    # Kimi K2, K2.5 and Kimi Linear
    "k2": _SHARED
    | {
        2: "<|im_end|>",
        3: "<|im_user|>",
        4: "<|im_assistant|>",
        6: "<|start_header_id|>",
        7: "<|end_header_id|>",
        10: "<|im_system|>",
        11: "<|tool_calls_section_begin|>",
        12: "<|tool_calls_section_end|>",
        13: "<|tool_call_begin|>",
        14: "<|tool_call_argument_begin|>",
        15: "<|tool_call_end|>",
        17: "<|im_middle|>",
        22: "<think>",
        23: "</think>",
    },
    # Kimi K3
    "k3": _SHARED
    | {
        2: "<|end_of_msg|>",
        3: "<|open|>",
        4: "<|close|>",
        5: "<|sep|>",
        6: "[start_header_id]",
        7: "[end_header_id]",
        65: "<osagent_mode>",
    },
}
"""Generation -> offset from the first slot -> name; other slots are `<|reserved_token_{id}|>`."""

_MARKS = {"k2": ("<|im_end|>", "<|im_user|>", "<|im_middle|>"), "k3": ("<|open|>", "<|sep|>", "<|end_of_msg|>")}
_FAMILIES = {"kimi_linear": "k2", "kimi_k3": "k3"}


def reserved(index: int) -> str:
    """The name of a slot that has none."""
    return f"<|reserved_token_{index}|>"


def generation_of(settings: Mapping[str, Any]) -> str:
    """The generation that settings ask for, by `generation` ("k2", "k3") or by `family` of the model.

    Raises ConfigError when there is neither, or an unknown one.
    """
    asked = settings.get("generation", _FAMILIES.get(str(settings.get("family")), settings.get("family")))
    if asked not in TABLES:
        raise ConfigError(
            f"text settings name generation {asked!r} of a tiktoken vocabulary, expected one of {', '.join(TABLES)} "
            f"or a family among {', '.join(_FAMILIES)}; without it control ids would be guessed"
        )
    return str(asked)


def named_slots(config: bytes, first: int, name: str = TOKENIZER_CONFIG) -> dict[int, str] | None:
    """Ids and names that `added_tokens_decoder` of a tokenizer_config.json lists, or None when it lists none.

    Raises CheckpointError for a file that is no JSON object, a name that is no text, a name given to two ids, or an id
    among the `first` ranks.
    """
    try:
        values = json.loads(config)
        added = values.get("added_tokens_decoder") or {}
        found = {int(key): entry["content"] if isinstance(entry, dict) else entry for key, entry in added.items()}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{name}: no description of a tokenizer ({type(error).__name__}: {error})") from error
    owner: dict[str, int] = {}
    for index, content in sorted(found.items()):
        if not isinstance(content, str) or not content:
            raise CheckpointError(f"{name}: added token {index} has content {content!r}, expected a text")
        if index < first:
            raise CheckpointError(
                f"{name}: added token {content!r} has id {index}, which is one of the {first} ranks of the vocabulary; "
                "the two files do not belong together"
            )
        if content in owner:
            raise CheckpointError(f"{name}: ids {owner[content]} and {index} are both called {content!r}")
        owner[content] = index
    return found or None


def generation_by_names(names: Mapping[int, str], name: str = TOKENIZER_CONFIG) -> str | None:
    """The generation whose marks are among the names; None when no mark is. Raises CheckpointError for a mixture."""
    present = set(names.values())
    found = [generation for generation, marks in _MARKS.items() if present & set(marks)]
    if len(found) > 1:
        both = ", ".join(next(mark for mark in _MARKS[generation] if mark in present) for generation in found)
        raise CheckpointError(f"{name}: holds control tokens of two generations ({both}), expected those of one")
    return found[0] if found else None


def slot_names(names: Mapping[int, str], first: int, size: int) -> dict[str, int]:
    """Name -> id for every slot from `first` to `size`, in id order."""
    return {names.get(index, reserved(index)): index for index in range(first, size)}


def table(generation: str, first: int, size: int) -> dict[int, str]:
    """Id -> name of a generation's named slots, for a vocabulary of `first` ranks and `size` ids."""
    return {first + offset: name for offset, name in TABLES[generation].items() if first + offset < size}
