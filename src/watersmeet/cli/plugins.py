"""`watersmeet plugins`: list them, hold one against the contract, begin a new one."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from watersmeet.cli.lists import failures, plugin_lines, plugin_oddities, plugins_as_json
from watersmeet.cli.run import parse_assignments
from watersmeet.core.errors import DecodeError, PluginError, UsageError
from watersmeet.plugins.loader import BLOCKED, FAILED, VARIABLE, normalise
from watersmeet.plugins.survey import Brought, Seen, survey


def list_command(*, strict: bool, as_json: bool) -> None:
    """Print all plugins; with `strict`, raise PluginError when one of them failed."""
    seen = survey()
    for line in [plugins_as_json(seen)] if as_json else plugin_lines(seen):
        print(line, flush=True)
    if not as_json:
        for sentence in plugin_oddities(seen):
            print(f"note: {sentence}", file=sys.stderr)
    if strict and (sentence := failures(seen)):
        raise PluginError(sentence)


def check_command(name: str, *, items: Sequence[str], assignments: Sequence[str], as_json: bool) -> bool:
    """Run the checks of everything that `name` brings and print what they came to; True when none failed.

    Raises PluginError when there is nothing of that name, DecodeError for a missing --item.
    """
    for item in items:
        if not Path(item).is_file():
            raise DecodeError(f"there is no file {item}")
    settings = parse_assignments(assignments)
    reports = [_report(pair, items, settings) for pair in _wanted(name, survey())]
    good = not any(outcome["state"] == "failed" for report in reports for outcome in report["checks"])
    if as_json:
        print(json.dumps({"passed": good, "plugins": reports}, indent=1, ensure_ascii=False), flush=True)
    else:
        for report in reports:
            print("\n".join(_lines(report)), flush=True)
    return good


def _wanted(name: str, seen: Sequence[Seen]) -> list[tuple[Seen, Brought]]:
    """The specs that are to be checked, and their plugins; a broken plugin has a spec that is only its name."""
    qualifier, _, bare = name.rpartition(":")
    wanted = normalise(bare)
    named = [one for one in seen if wanted in (normalise(one.plugin), normalise(one.distribution))]
    if qualifier:
        named = []
        seen = [one for one in seen if normalise(qualifier) in (normalise(one.plugin), normalise(one.distribution))]
    if any(one.own for one in named):
        named = [one for one in named if one.plugin == bare] or named
    if not named:
        pairs = [(one, item) for one in seen for item in one.brings if item.name == bare]
        if pairs:
            return pairs
        words = sorted({word for one in seen for word in (one.plugin, *(item.name for item in one.brings))})
        close = get_close_matches(bare, words, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(words) or 'none'}."
        raise PluginError(f"there is no plugin {name!r} in this environment; {hint} Is its package installed?")
    for one in named:
        if one.state == BLOCKED:
            raise PluginError(f"plugin {one.plugin} is blocked by the environment variable {VARIABLE}; unset it")
    broken = [(one, Brought(kind="modality", name=one.plugin)) for one in named if one.state == FAILED]
    brought = broken + [(one, item) for one in named for item in one.brings]
    if not brought:
        raise PluginError(
            f"plugin {named[0].plugin} brings nothing that could be checked: its hooks return empty lists"
        )
    return brought


def _report(pair: tuple[Seen, Brought], items: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
    one, item = pair
    outcomes = _outcomes(f"{one.plugin}:{item.name}", item, items, settings)
    return {
        "plugin": one.plugin,
        "distribution": one.distribution,
        "version": one.version,
        "kind": item.kind,
        "name": item.name,
        "checks": [outcome.as_dict() for outcome in outcomes],
    }


def _outcomes(name: str, item: Brought, items: Sequence[str], settings: dict[str, Any]) -> list[Any]:
    paths = [Path(word) for word in items]
    if item.kind == "modality":
        from watersmeet.testing.modality import examine
        from watersmeet.testing.subject import Subject

        files: dict[str, bytes] = {}
        if item.name == "text" and not settings:
            # text has no vocabulary of its own; the built-in model's will do
            from watersmeet.pipelines.models.reading import read_folder

            encoder = read_folder("nano").encoders["text"]
            settings, files = encoder.settings, encoder.files
        subject = Subject(modality=name, settings=settings, files=files, items=paths or None)
        return list(examine(subject).outcomes())
    from watersmeet.testing.pipeline import PipelineSubject, examine_pipeline

    return list(examine_pipeline(PipelineSubject(pipeline=name, settings=settings, inputs=paths or None)).outcomes())


_MARKS = {"passed": "ok  ", "failed": "FAIL", "skipped": "-   "}


def _lines(report: dict[str, Any]) -> list[str]:
    package = f"{report['distribution']} {report['version']}".strip()
    lines = [f"{report['kind']} {report['name']} of {report['plugin']} ({package})"]
    for check in report["checks"]:
        detail = f"  ({check['detail']})" if check["state"] == "skipped" else ""
        lines.append(f"  {_MARKS[check['state']]} {check['number']:2} {check['name']:<10} {check['rule']}{detail}")
        if check["state"] == "failed":
            lines += [
                f"          found:  {check['detail']}",
                f"          why:    {check['reason']}",
                f"          change: {check['fix']}",
            ]
    states = [check["state"] for check in report["checks"]]
    counts = [f"{states.count(state)} {state}" for state in ("passed", "failed", "skipped") if state in states]
    return [*lines, f"  {', '.join(counts)}"]


def new_command(name: str, *, kind: str, out: Path | None) -> list[str]:
    """Write the skeleton of a package and say what to do with it. Raises UsageError for a name or kind that cannot be."""
    from watersmeet.testing.skeleton import KINDS, write_skeleton

    if kind not in KINDS:
        close = get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"expected {' or '.join(KINDS)}"
        raise UsageError(f"--kind {kind!r} is none; {hint}")
    return write_skeleton(name, kind=kind, out=out)
