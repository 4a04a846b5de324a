"""video-to-spec: a screen recording becomes a specification of which every claim names a time and a frame."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from watersmeet.core.errors import UsageError
from watersmeet.pipelines.models.asked import asked
from watersmeet.pipelines.models.local import LocalModel
from watersmeet.pipelines.models.remote import RemoteModel
from watersmeet.pipelines.task.staging import staged
from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.ahead import Ahead
from watersmeet.pipelines.video_to_spec.ask import ask_steps
from watersmeet.pipelines.video_to_spec.outputs import wanted_times, write_outputs
from watersmeet.pipelines.video_to_spec.score import count, scores_of
from watersmeet.pipelines.video_to_spec.server import ask_in_words
from watersmeet.pipelines.video_to_spec.settings import Settings
from watersmeet.pipelines.video_to_spec.spec import Spec
from watersmeet.pipelines.video_to_spec.truth import Truth, read_truth
from watersmeet.pipelines.video_to_spec.watch.look import look
from watersmeet.pipelines.video_to_spec.watch.sight import Sight
from watersmeet.plugins.registry import get_registry
from watersmeet.plugins.result import Result
from watersmeet.plugins.settings import read_settings

Progress = Callable[[str, float], None]
SCORES = "scores.json"


@dataclass(frozen=True, kw_only=True)
class _Said:
    """What a model said of a recording. claims: how many of them were made and dropped, where that can happen. tokens: of our own
    model's stream, how many patches, how many in all, and how many of these it wrote."""

    spec: Spec
    warnings: tuple[str, ...]
    claims: Mapping[str, int]
    tokens: Mapping[str, int]


class VideoToSpec:
    """The pipeline. `settings` are those of `Settings`; `model` is what `watersmeet.pipelines.models.open_model` gives."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = read_settings(Settings, settings, "video-to-spec", error=UsageError)

    def run(self, inputs: Sequence[Path], model: Any, out_dir: Path, progress: Progress) -> Result:
        """Write spec.json, spec.md, report.html, flow.spec.ts, scores.json and frames/ below `out_dir`.

        Raises DecodeError for what is no video, UsageError for a model that cannot do it, RemoteError for a server that
        fails, and an OutputError if `out_dir` cannot be written; then nothing is left there.
        """
        if len(inputs) != 1:
            raise UsageError(f"video-to-spec takes one recording, {len(inputs)} were given")
        started = time.monotonic()
        path = Path(inputs[0])
        truth = read_truth(Path(self.settings.truth)) if self.settings.truth else None
        model = asked(model, self.settings.max_answer)
        encoders = encoders_of(model)
        with staged(Path(out_dir)) as stage:
            sight = watch(path, encoders, lambda share: progress("watching", 0.5 * share))
            if truth is not None:
                _same_recording(truth, sight, self.settings.truth)
            progress("asking the model", 0.5)
            with Ahead(encoders["video"], path, sight) as ahead:
                said = self._ask(
                    model, path, sight, encoders, lambda share: progress("asking the model", 0.5 + 0.4 * share)
                )
                progress("writing", 0.9)
                with ahead.frames(wanted_times(said.spec)) as frame_at:
                    files = write_outputs(said.spec, frame_at, stage)
            scores = _scores(said, truth)
            record = {"model": model.name, "seconds": round(time.monotonic() - started, 2), "scores": scores}
            record |= {"claims": dict(said.claims)} if said.claims else {}
            record |= {"frames": len(sight.times_us), "tokens": dict(said.tokens)} if said.tokens else {}
            (stage / SCORES).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            progress("done", 1.0)
        found = f"{len(said.spec.screens)} screens, {len(said.spec.steps)} steps"
        return Result(
            out_dir=Path(out_dir),
            files=(*files, SCORES),
            # a result's scores are shares
            scores={name: value for name, value in scores.items() if name != "start_error_s"},
            warnings=(*sight.notes, *dict.fromkeys(said.warnings)),
            summary=f"{Path(out_dir) / files[0]}  {found}",
        )

    @staticmethod
    def scripted(prompt: str, picture: Any) -> str:
        """An answer of a large model, for the checks of the contract."""
        return '{"screens": [{"id": "a", "title": "First", "first_seen_s": 0.0}], "steps": []}'

    def _ask(
        self, model: Any, path: Path, sight: Sight, encoders: Mapping[str, Any], progress: Callable[[float], None]
    ) -> _Said:
        if _talks(model):
            if isinstance(model, RemoteModel):
                model = replace(model, timeout_s=self.settings.timeout_s)
            found = ask_in_words(
                model,
                path,
                sight,
                encoders["video"],
                key_frames=self.settings.key_frames,
                max_tokens=self.settings.max_answer,
            )
            names = ("claims", "kept", "invented", "dropped", "mended")
            claims = {name: getattr(found, name) for name in names}
            return _Said(spec=found.spec, warnings=found.warnings, claims=claims, tokens={})
        answer = ask_steps(model, sight, max_tokens=self.settings.max_tokens, progress=progress)
        patches = sum(len(turn.patches.time_us) for turn in sight.turns)
        tokens = {"patches": patches, "stream": answer.read + answer.written, "written": answer.written}
        return _Said(spec=answer.spec, warnings=answer.warnings, claims={}, tokens=tokens)


def watch(path: Path, encoders: Mapping[str, Any], progress: Callable[[float], None]) -> Sight:
    """What is seen in a recording, called by the name of its file. Raises DecodeError for what is no video."""
    sight = look(path, encoders=encoders, progress=progress)
    # a name may be bytes that are no text
    name = os.fsencode(path.name).decode("utf-8", "replace")
    return replace(sight, source=replace(sight.source, path=name))


def encoders_of(model: Any) -> dict[str, Any]:
    """Encoders for videos and regions: the model's own, or fresh ones for a model that is asked in words.

    Raises UsageError for a local model that cannot write steps of recordings.
    """
    if _talks(model):
        registry = get_registry()
        return {name: registry.encoder(name, {}) for name in ("video", "regions")}
    check_model(model)
    return dict(model.encoders)


def _talks(model: Any) -> bool:
    """Whether a model is asked in words."""
    return hasattr(model, "ask_parts")


def check_model(model: LocalModel) -> None:
    """Raises UsageError for a model without a modality, or without symbols, that are needed."""
    instead = "give a model that was taught recordings, or openai:NAME@URL"
    missing = [name for name in ("video", "regions", "text") if name not in model.encoders]
    if missing:
        raise UsageError(
            f"model {model.name!r} has no {missing[0]} modality, which video-to-spec needs; it has "
            f"{', '.join(sorted(model.encoders)) or 'none'}; {instead}"
        )
    unknown = [name for name in (markup.NEW, *markup.DO.values()) if name not in model.encoders["text"].symbols]
    if unknown:
        raise UsageError(
            f"model {model.name!r} has no symbol {unknown[0]} in its vocabulary, with which video-to-spec writes steps; {instead}"
        )


def _same_recording(truth: Truth, sight: Sight, name: str) -> None:
    if truth.spec.source.frames != len(sight.times_us):
        raise UsageError(
            f"setting truth: {name} is about a recording of {truth.spec.source.frames} frames, but this one has "
            f"{len(sight.times_us)}"
        )


def _scores(said: _Said, truth: Truth | None) -> dict[str, float | None]:
    """Of a model that may make up evidence, the share of its claims that were kept; against the truth, how near it comes."""
    scores: dict[str, float | None] = {}
    if said.claims:
        made = said.claims["claims"]
        scores["proven"] = said.claims["kept"] / made if made else None
    if truth is not None:
        found = asdict(scores_of(count(said.spec, truth)))
        del found["unproven"]
        scores |= found
    return scores
