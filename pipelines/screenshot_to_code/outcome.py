"""Everything a run leaves behind beside the code itself: tree, render, scores, report."""

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from watersmeet.pipelines.layout.tree import Node
from watersmeet.pipelines.report.page import Report, ScoreRow, Unmatched, difference_map, render_report
from watersmeet.pipelines.score import MEANINGS
from watersmeet.pipelines.screenshot_to_code.judge import Judged, browser_facts
from watersmeet.pipelines.screenshot_to_code.read import Screenshot
from watersmeet.plugins.result import Result

BASIS = (
    "Compared with the picture itself and the text lines that were read from it, since there is no reference page. "
    "What a picture cannot tell, such as which words are links, is left open; CODE then only says that text stands in "
    "normal flow and that the page fits a phone."
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a model's answer came to. `judged` is None when nothing was rendered; `failure` says why."""

    tree: Node | None
    code: tuple[str, ...]
    judged: Judged | None
    failure: str = ""
    warnings: tuple[str, ...] = ()
    candidates: tuple[tuple[str, float], ...] = ()
    chosen: str = ""
    markups: tuple[tuple[str, ...], ...] = ()


def write_outcome(
    outcome: Outcome,
    *,
    shot: Screenshot,
    stage: Path,
    source: Path,
    title: str,
    target: str,
    model_name: str,
    seconds: float,
    complaint: str,
) -> Result:
    """Write layout.json, render.png, difference.png, scores.json and report.html into `stage`."""
    warnings = [*shot.warnings, *dict.fromkeys(outcome.warnings)]
    if outcome.judged is None:
        warnings.append(f"Nothing was rendered: {complaint or outcome.failure}")
    if outcome.tree is not None:
        _write_json(stage / "layout.json", outcome.tree.to_json())
    if outcome.judged is not None:
        render = outcome.judged.page.screenshot
        render.save(stage / "render.png")
        difference_map(shot.picture, render).save(stage / "difference.png")
    scores = outcome.judged.scores.to_json() if outcome.judged else {}
    _write_json(
        stage / "scores.json",
        {"basis": "picture", "scores": scores, "seconds": round(seconds, 2), "model": model_name, "target": target},
    )
    images = (
        sorted(str(p.relative_to(stage)) for p in (stage / "images").glob("*")) if (stage / "images").is_dir() else []
    )
    made = ["layout.json"] * (outcome.tree is not None) + ["render.png", "difference.png"] * (
        outcome.judged is not None
    )
    files = [*outcome.code, *made, "scores.json", *images]
    facts = [
        ("Input", f"{source.name}, {shot.picture.width} x {shot.picture.height} px"),
        ("Model", model_name),
        ("Target", _target_note(target)),
        ("Read from the picture", f"{len(shot.regions.texts)} text lines, {len(shot.regions.shapes)} boxes"),
        ("Symbols written by the model", ", ".join(str(len(m)) for m in outcome.markups) or "–"),
        ("watersmeet", version("watersmeet")),
        *browser_facts(outcome.judged),
    ]
    report = Report(
        title=title,
        input_name="input.png",
        render_name="render.png" if outcome.judged else None,
        difference_name="difference.png" if outcome.judged else None,
        scores=[ScoreRow(name=name, value=value, meaning=MEANINGS.get(name, "")) for name, value in scores.items()],
        basis=BASIS,
        unmatched=_unmatched(outcome.judged),
        warnings=warnings,
        files=files,
        candidates=outcome.candidates if len(outcome.candidates) > 1 else (),
        chosen=outcome.chosen,
        facts=facts,
    )
    (stage / "report.html").write_text(render_report(report), encoding="utf-8")
    return Result(out_dir=stage, files=("report.html", *files), scores=scores, warnings=tuple(warnings))


def _target_note(target: str) -> str:
    if target == "react":
        return "react; rendered from the finished markup in index.html, which shows before and without a build"
    return target


def _unmatched(judged: Judged | None) -> list[Unmatched]:
    if judged is None:
        return []
    scores = judged.scores
    return [Unmatched(side="input", text=line.text, box=line.box) for line in scores.unmatched_reference] + [
        Unmatched(side="result", text=line.text, box=line.box) for line in scores.unmatched_result
    ]


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
