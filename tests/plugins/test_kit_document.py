"""The page about checks says what the checks say, and its code runs."""

import re
from pathlib import Path

from watersmeet.testing import MODALITY_CHECKS, PIPELINE_CHECKS

PAGE = Path(__file__).parents[2] / "docs/plugins/checks.md"


def test_its_tables_are_the_checks():
    rows = [row for row in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d+ \|", row)]
    checks = [*MODALITY_CHECKS, *PIPELINE_CHECKS]
    assert rows == [f"| {one.number} | {one.name} | {one.rule} | {one.fix} |" for one in checks]


def test_its_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
