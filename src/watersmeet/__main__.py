"""The command `watersmeet`, also as `python -m watersmeet`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit code."""
    _leave_checkout()
    from watersmeet.cli.app import run_command_line

    return run_command_line(list(sys.argv[1:] if arguments is None else arguments))


def _leave_checkout() -> None:
    """Take the project's own top folder off the import path.

    `python -m watersmeet` puts the working folder there. In a checkout that folder has rooms whose bare names are also
    names of other people's packages, and a library that imports its own `tokenizers` would find ours.
    """
    if sys.path and all((Path(sys.path[0]) / room / "__init__.py").is_file() for room in ("core", "tokenizers")):
        del sys.path[0]


if __name__ == "__main__":
    sys.exit(main())
