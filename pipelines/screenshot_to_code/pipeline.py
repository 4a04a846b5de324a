"""screenshot-to-code: a picture of a page becomes code that renders like it, with a report that proves how close."""

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from watersmeet.core.errors import RenderError, UsageError
from watersmeet.pipelines.browser.find import find_chromium
from watersmeet.pipelines.browser.render import Browser
from watersmeet.pipelines.emit import emit
from watersmeet.pipelines.layout.nest import nest
from watersmeet.pipelines.layout.propose import propose
from watersmeet.pipelines.layout.simplify import to_tree
from watersmeet.pipelines.layout.tree import Node
from watersmeet.pipelines.models.asked import AskedModel, asked
from watersmeet.pipelines.models.remote import RemoteModel
from watersmeet.pipelines.score import facts_from_picture
from watersmeet.pipelines.screenshot_to_code.candidates import alternatives, judge_all, measured, write_page
from watersmeet.pipelines.screenshot_to_code.judge import Judge, try_judge, write_files
from watersmeet.pipelines.screenshot_to_code.outcome import Outcome, write_outcome
from watersmeet.pipelines.screenshot_to_code.read import Screenshot, read_screenshot
from watersmeet.pipelines.screenshot_to_code.server import ask_for_page
from watersmeet.pipelines.screenshot_to_code.settings import Settings
from watersmeet.pipelines.task.staging import staged
from watersmeet.plugins.registry import get_registry
from watersmeet.plugins.result import Result

Progress = Callable[[str, float], None]


class ScreenshotToCode:
    """The pipeline. `settings` are those of `Settings`; `model` is what `watersmeet.pipelines.models.open_model` gives."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = Settings.parse(settings or {})

    def run(self, inputs: Sequence[Path], model: Any, out_dir: Path, progress: Progress) -> Result:
        """Write code, layout.json, render.png, scores.json and report.html below `out_dir`.

        Raises DecodeError for a bad picture, RemoteError for a server that fails, and an OutputError if `out_dir`
        cannot be written; then nothing is left there. Without a browser the code is written all the same.
        """
        if len(inputs) != 1:
            raise UsageError(f"screenshot-to-code takes one picture, {len(inputs)} were given")
        started = time.monotonic()
        path = Path(inputs[0])
        model = asked(model, self.settings.max_tokens)
        with staged(Path(out_dir)) as stage, ExitStack() as stack:
            progress("reading the picture", 0.0)
            shot = read_screenshot(path, _encoders(model))
            shot.picture.save(stage / "input.png")
            judge, complaint = _judge(shot, stack)
            if isinstance(model, (RemoteModel, AskedModel)):
                outcome = self._ask(model, shot, judge, stage, progress)
            else:
                outcome = self._infer(model, shot, judge, stage, progress)
            title = self.settings.title or path.stem
            result = write_outcome(
                outcome,
                shot=shot,
                stage=stage,
                source=path,
                title=title,
                target=self.settings.target,
                model_name=model.name,
                seconds=time.monotonic() - started,
                complaint=complaint,
            )
            progress("done", 1.0)
        return _moved(result, Path(out_dir))

    def _infer(self, model: Any, shot: Screenshot, judge: Judge | None, stage: Path, progress: Progress) -> Outcome:
        """The picture's tree from a local model, measured, emitted and judged."""
        progress("writing the layout", 0.35)
        proposal = propose(
            model,
            shot.picture,
            shot.regions,
            max_tokens=self.settings.max_tokens,
            temperature=self.settings.temperature,
            seed=self.settings.seed,
            progress=lambda share: progress("writing the layout", 0.35 + 0.25 * share),
        )
        progress("measuring colours and sizes", 0.6)
        title = self.settings.title or "Page"
        with tempfile.TemporaryDirectory() as name:
            scratch = Path(name)
            if self.settings.alternatives and judge is not None:
                trees = alternatives(proposal.tree, shot, scratch)
            else:
                trees = [measured("the model's tree", nest(proposal.tree, shot.regions), shot, scratch / "own")]
            ranked = judge_all(trees, judge, scratch, lambda share: progress("rendering", 0.65 + 0.25 * share))
            best = ranked[0]
            code = write_page(best, self.settings.target, stage, title)
            judged, failure = try_judge(judge, stage / "index.html")
        return Outcome(
            tree=best.tree,
            code=code,
            judged=judged,
            failure=failure,
            warnings=proposal.warnings,
            candidates=tuple((c.name, c.rank) for c in ranked if c.judged is not None),
            chosen=best.name,
            markups=proposal.markups,
        )

    def _ask(
        self, model: RemoteModel | AskedModel, shot: Screenshot, judge: Judge | None, stage: Path, progress: Progress
    ) -> Outcome:
        """The page that a large model wrote, rendered and judged like our own."""
        progress("waiting for the model", 0.35)
        answer = ask_for_page(model, shot.picture, shot.regions)
        (stage / "index.html").write_text(answer.html, encoding="utf-8")
        progress("rendering", 0.8)
        judged, failure = try_judge(judge, stage / "index.html")
        warnings = list(answer.warnings)
        tree: Node | None = None
        code = ["index.html"]
        if judged is not None:
            tree = to_tree(judged.page.raw, judged.page.screenshot)
            if self.settings.target != "html":
                files = emit(tree, self.settings.target, title=self.settings.title or "Page")
                write_files(stage, files)
                code = list(files)
        elif self.settings.target != "html":
            warnings.append(f"the model's HTML was kept, since making {self.settings.target} of it needs a browser")
        return Outcome(
            tree=tree,
            code=tuple(code),
            judged=judged,
            failure=failure,
            warnings=tuple(warnings),
            chosen="the model's page",
        )


def _encoders(model: Any) -> dict[str, Any]:
    """Encoders for pictures and regions: the model's own, or fresh ones for a model that lives elsewhere."""
    if isinstance(model, (RemoteModel, AskedModel)):
        registry = get_registry()
        return {name: registry.encoder(name, {}) for name in ("image", "regions")}
    missing = [name for name in ("image", "regions", "text") if name not in model.encoders]
    if missing:
        raise UsageError(
            f"model {model.name!r} has no {missing[0]} modality, which screenshot-to-code needs; it has {sorted(model.encoders)}"
        )
    return dict(model.encoders)


def _judge(shot: Screenshot, stack: ExitStack) -> tuple[Judge | None, str]:
    """A judge with a browser of its own, or the reason why there is none."""
    try:
        find_chromium()
    except RenderError as error:
        return None, str(error)
    browser = stack.enter_context(Browser())
    return Judge(browser, facts_from_picture(shot.picture, shot.regions.texts, shot.regions.shapes)), ""


def _moved(result: Result, out_dir: Path) -> Result:
    scores = json.loads((out_dir / "scores.json").read_text(encoding="utf-8"))["scores"]
    look = scores.get("LOOK")
    score = f"LOOK {look:.3f}" if look is not None else "nothing was rendered"
    return Result(
        out_dir=out_dir,
        files=result.files,
        scores=scores,
        warnings=result.warnings,
        summary=f"{out_dir / 'report.html'}  {score}",
    )
