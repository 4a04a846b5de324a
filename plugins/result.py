"""What a pipeline returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of one run.

    out_dir   the folder with everything that was written
    files     names of the written files, relative to `out_dir`, the most useful one first
    scores    numbers from 0 to 1 by name; None where a number cannot be known
    warnings  one sentence each, for the person who ran it
    summary   the one line that ends a run
    """

    out_dir: Path
    files: tuple[str, ...] = ()
    scores: Mapping[str, float | None] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    summary: str = ""
