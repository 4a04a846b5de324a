"""What one request asks for besides its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watersmeet.core.errors import UsageError

TOOL_CHOICES = ("auto", "required", "none")


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """thinking: whether the model reasons first; None leaves it to the format. effort: how much (K3: low, high, max).
    tool_choice: auto, required or none. response_format: OpenAI's, of type text, json_object or json_schema.
    generate: end with the opening of an answer. keep_reasoning: K2 forms drop the reasoning of earlier turns otherwise.

    Raises UsageError for values outside these.
    """

    thinking: bool | None = None
    effort: str | None = None
    tool_choice: str | None = None
    response_format: Mapping[str, Any] | None = None
    generate: bool = True
    keep_reasoning: bool = False

    def __post_init__(self) -> None:
        if self.tool_choice is not None and self.tool_choice not in TOOL_CHOICES:
            raise UsageError(f"chat: tool_choice is {self.tool_choice!r}, expected one of {', '.join(TOOL_CHOICES)}")
        kind = self.format_type
        if kind not in ("text", "json_object", "json_schema"):
            raise UsageError(f"chat: response_format has type {kind!r}, expected text, json_object or json_schema")
        if kind == "json_schema" and not isinstance(self.schema, Mapping):
            raise UsageError("chat: response_format of type json_schema has no json_schema with a schema")

    @property
    def format_type(self) -> Any:
        """ "text", "json_object" or "json_schema"."""
        return "text" if self.response_format is None else self.response_format.get("type")

    @property
    def schema(self) -> Any:
        """The schema of a response_format of type json_schema, else None."""
        holder = (self.response_format or {}).get("json_schema")
        return holder.get("schema") if isinstance(holder, Mapping) else None
