"""The log of a run: one JSON object a line, append only, cut back to the checkpoint on resume."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


def _clean(value: Any) -> Any:
    """JSON has no NaN or infinity; they are written as strings so that any reader can parse the file."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


class JsonlLog:
    """Append-only JSONL file; every record carries `step` and `kind` ("train", "eval", "note")."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, kind: str, step: int, **values: Any) -> None:
        """Write one line and flush it to the operating system."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **_clean(values)}, ensure_ascii=False) + "\n")

    def cut_after(self, step: int) -> None:
        """Drop lines of steps after `step` and torn lines (a killed run leaves both), by writing beside and renaming."""
        if not self.path.exists():
            return
        kept = [line for line in self.read() if line["step"] <= step]
        beside = self.path.with_name(self.path.name + ".tmp")
        beside.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept), encoding="utf-8")
        os.replace(beside, self.path)

    def read(self) -> list[dict[str, Any]]:
        """All whole lines."""
        return read_log(self.path)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Records of a JSONL log; a torn last line is left out."""
    records = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and "step" in record:
            records.append(record)
    return records
