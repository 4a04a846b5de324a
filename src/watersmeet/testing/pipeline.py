"""The checks of a pipeline, and the class that makes a test of each."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from watersmeet.core.errors import DecodeError, PluginError, WatersmeetError
from watersmeet.plugins.guard import describe
from watersmeet.plugins.loader import FAILED
from watersmeet.plugins.registry import Registry, get_registry
from watersmeet.plugins.result import Result
from watersmeet.plugins.survey import LIMIT_S, Seen, survey
from watersmeet.testing import loading, samples
from watersmeet.testing.checks import Check, CheckFailure, Examination
from watersmeet.testing.modality import as_test
from watersmeet.testing.scripted import Reply, ScriptedModel

if TYPE_CHECKING:
    from watersmeet.plugins.specs import PipelineSpec


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: its result, the progress it reported, and what it left where."""

    result: Any
    steps: tuple[tuple[str, float], ...]
    out_dir: Path
    before: frozenset[str]
    after: frozenset[str]


@dataclass(kw_only=True)
class PipelineSubject:
    """What is examined, and with what.

    pipeline   its name
    settings   of the pipeline
    inputs     files for one run; without them, the class's own examples(folder), else one made-up file of a type it takes
    reply      what the scripted model answers; without it, the class's own scripted(prompt, picture), else "ok"
    limit_s    seconds that importing the plugin may take
    """

    pipeline: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Sequence[Path] | None = None
    reply: Reply | None = None
    limit_s: float = LIMIT_S

    @cached_property
    def registry(self) -> Registry:
        """The registry of this process."""
        return get_registry()

    @cached_property
    def seen(self) -> Seen:
        """The plugin as a child process saw it."""
        qualifier, _, bare = self.pipeline.rpartition(":")
        named = survey(only=qualifier or self.pipeline, limit_s=self.limit_s)
        for one in named:
            if any(item.kind == "pipeline" and item.name == bare for item in one.brings) or one.state == FAILED:
                return one
        owner = self.registry.pipeline_owner(self.pipeline)
        return next(one for one in survey(only=owner.plugin, limit_s=self.limit_s) if one.plugin == owner.plugin)

    @cached_property
    def spec(self) -> PipelineSpec:
        """The spec. Raises PluginError when the plugin cannot be loaded."""
        if self.seen.state == FAILED:
            raise PluginError(f"plugin {self.seen.plugin} failed to load: {self.seen.error}")
        return self.registry.pipeline(self.pipeline)

    @cached_property
    def folder(self) -> Any:
        """Where inputs are written and runs take place; removed with this object."""
        return tempfile.TemporaryDirectory(prefix="watersmeet-check-")

    @cached_property
    def pipeline_class(self) -> Any:
        """The class behind the spec."""
        return self.registry.resolve_pipeline(self.pipeline)

    def model(self) -> ScriptedModel | None:
        """A fresh scripted model; None for a pipeline that brings its own."""
        if self.spec.own_model:
            return None
        own = getattr(self.pipeline_class, "scripted", None)
        return ScriptedModel(reply=self.reply or own or (lambda prompt, picture: "ok"))

    @cached_property
    def files(self) -> list[Path]:
        """Inputs of one run."""
        if self.inputs is not None:
            return [Path(item) for item in self.inputs]
        place = Path(self.folder.name) / "inputs"
        place.mkdir()
        make = getattr(self.pipeline_class, "examples", None)
        if callable(make):
            return [Path(item) for item in make(place)]
        for one in samples.samples_of(self.spec.inputs):
            item = one.ordinary[0]
            path = place / "example"
            path.write_bytes(item if isinstance(item, bytes) else item.encode())
            self.made_up = True
            return [path]
        raise CheckFailure(
            "there is no input to run with: give inputs(), a method examples(folder) of the class, --item FILE, or an "
            f"input type that examples can be made of ({', '.join(samples.known_types())})"
        )

    @cached_property
    def first(self) -> Run:
        """A run of a fresh pipeline."""
        return self.run("first")

    def run(self, name: str, files: Sequence[Path] | None = None) -> Run:
        """Run a fresh pipeline into a new folder."""
        given = [str(item) for item in (self.files if files is None else files)]
        place = Path(self.folder.name) / f"run-{name}"
        place.mkdir()
        steps: list[tuple[str, float]] = []
        before = _tree(Path(self.folder.name))
        out = place / "out"
        try:
            result = self.pipeline_class(dict(self.settings)).run(
                given, self.model(), out, lambda what, share: steps.append((what, share))
            )
        finally:
            self.left = _tree(place)
        after = _tree(Path(self.folder.name))
        return Run(result=result, steps=tuple(steps), out_dir=out, before=before, after=after)

    left: frozenset[str] = frozenset()
    made_up: bool = False


def _tree(folder: Path) -> frozenset[str]:
    return frozenset(f"{path.relative_to(folder)}" for path in folder.rglob("*"))


def settings_are_checked(subject: PipelineSubject) -> None:
    """3: defaults work, and a setting that there is not is refused."""
    loading.spec_is_there(subject)
    subject.pipeline_class(dict(subject.settings))
    try:
        subject.pipeline_class({**subject.settings, "no_such_setting": 1})
    except WatersmeetError as error:
        if "no_such_setting" not in str(error):
            raise CheckFailure(f"the error about an unknown setting does not name it: {error}") from error
        return
    except Exception as error:  # the plugin's own code
        raise CheckFailure(f"an unknown setting raised {describe(error)}, expected ConfigError") from error
    raise CheckFailure("the setting no_such_setting was taken without a word, expected ConfigError")


def gives_a_result(subject: PipelineSubject) -> None:
    """4: a run returns a Result whose files are there."""
    try:
        run = subject.first
    except DecodeError as error:
        if subject.made_up:
            raise CheckFailure(
                f"the made-up input was refused ({error}); give the class a method examples(folder), or --item FILE"
            ) from error
        raise
    result = run.result
    if not isinstance(result, Result):
        raise CheckFailure(f"run returned a {type(result).__name__}, expected watersmeet.plugins.result.Result")
    if Path(result.out_dir) != run.out_dir:
        raise CheckFailure(f"out_dir of the result is {result.out_dir}, expected the folder that was given")
    if not result.files:
        raise CheckFailure("the result names no file, expected at least one")
    for name in result.files:
        if Path(name).is_absolute() or not (run.out_dir / name).is_file():
            raise CheckFailure(f"the result names {name!r}, and there is no such file below the output folder")
    for name, score in result.scores.items():
        if score is not None and not 0 <= score <= 1:
            raise CheckFailure(f"score {name} is {score}, expected 0 to 1, or None")
    if not all(isinstance(warning, str) for warning in result.warnings):
        raise CheckFailure("a warning is no text")


def stays_in_its_folder(subject: PipelineSubject) -> None:
    """5: nothing is written beside the output folder."""
    run = subject.first
    inside = f"{run.out_dir.relative_to(subject.folder.name)}"
    beside = sorted(name for name in run.after - run.before if name != inside and not name.startswith(f"{inside}/"))
    if beside:
        raise CheckFailure(f"the run left {beside[0]!r} beside its output folder")


def reports_progress(subject: PipelineSubject) -> None:
    """6: progress is told, from 0 to 1 and never backwards."""
    steps = subject.first.steps
    if not steps:
        raise CheckFailure("progress was never called")
    shares = [share for _, share in steps]
    if wrong := [step for step in steps if not isinstance(step[0], str) or not 0 <= step[1] <= 1]:
        raise CheckFailure(f"progress was called with {wrong[0]!r}, expected a text and a number from 0 to 1")
    if shares != sorted(shares):
        raise CheckFailure(f"progress went backwards: {shares}")


def repeats(subject: PipelineSubject) -> None:
    """7: the same inputs and replies give the same most useful file."""
    again = subject.run("again")
    first = subject.first.result.files
    if tuple(again.result.files) != tuple(first):
        raise CheckFailure(f"a second run wrote {list(again.result.files)}, the first {list(first)}")
    contents = [(run.out_dir / first[0]).read_bytes() for run in (subject.first, again)]
    if contents[0] != contents[1]:
        raise CheckFailure(f"two runs on the same inputs wrote different {first[0]}")


def refuses_damaged_inputs(subject: PipelineSubject) -> None:
    """8: bad inputs are an error of one sentence, and leave nothing."""
    place = Path(subject.folder.name) / "damaged"
    place.mkdir()
    suffix = subject.files[0].suffix
    strict = any(one.strict for one in samples.samples_of(subject.spec.inputs))
    cases = {"empty": b"", "cut": subject.files[0].read_bytes()[:40], "noise": samples.noise(2000)}
    for name, content in cases.items():
        (place / f"{name}{suffix}").write_bytes(content)
    for name in (*cases, "missing"):
        try:
            subject.run(f"damaged-{name}", [place / f"{name}{suffix}"])
        except WatersmeetError:
            if subject.left:
                raise CheckFailure(f"after an {name} input the failed run left {sorted(subject.left)[0]!r}") from None
            continue
        except Exception as error:  # the plugin's own code
            raise CheckFailure(f"an {name} input raised {describe(error)}, expected DecodeError") from error
        if strict or name == "missing":
            raise CheckFailure(f"an {name} input was taken, expected DecodeError")


PIPELINE_CHECKS: tuple[Check[PipelineSubject], ...] = (
    Check(
        number=1,
        name="light",
        rule="the plugin's module is imported quickly, without torch and without effects",
        reason="every list of plugins imports it, so its cost and its prints are everybody's.",
        fix="install the package, and mend what its import raised; name the class as 'package.module:Class' in the spec, and keep slow imports in that other module.",
        run=loading.loads_light,
    ),
    Check(
        number=2,
        name="contract",
        rule="the spec is written for a contract that this watersmeet keeps",
        reason="a plugin for another contract would fail later, in the middle of somebody's work.",
        fix="give the spec the contract it was written for, and install the watersmeet that keeps it.",
        run=loading.contract_is_known,
    ),
    Check(
        number=3,
        name="settings",
        rule="the class takes its settings, and refuses one that it does not have",
        reason="a misspelt --set would otherwise change nothing, and nobody would know.",
        fix="read them with watersmeet.plugins.settings.read_settings into a frozen dataclass.",
        run=settings_are_checked,
    ),
    Check(
        number=4,
        name="result",
        rule="run(inputs, model, out_dir, progress) returns a Result whose files are there",
        reason="the command line, the Python API and other pipelines read what it says.",
        fix="return watersmeet.Result(out_dir=out_dir, files=(NAME, ...)) with names relative to out_dir.",
        needs=(3,),
        run=gives_a_result,
    ),
    Check(
        number=5,
        name="folder",
        rule="nothing is written outside the output folder",
        reason="people run pipelines beside their own files.",
        fix="write below out_dir, and use tempfile for what is not a result.",
        needs=(4,),
        run=stays_in_its_folder,
    ),
    Check(
        number=6,
        name="progress",
        rule="progress(what, share) is called, with shares from 0 to 1 that never fall",
        reason="who waits wants to know for what.",
        fix="call progress('reading', 0.0) first and with a growing share before each step.",
        needs=(4,),
        run=reports_progress,
    ),
    Check(
        number=7,
        name="repeat",
        rule="the same inputs and answers give the same first file",
        reason="a result that nobody can get again cannot be compared or mended.",
        fix="seed what is random, sort what comes from sets and folders, and keep the time out of the first file.",
        needs=(4,),
        run=repeats,
    ),
    Check(
        number=8,
        name="damage",
        rule="a missing, empty or damaged input is an error of ours, and nothing is left behind",
        reason="half a result looks like a result.",
        fix="raise DecodeError before anything is written, or write beside and rename.",
        needs=(4,),
        run=refuses_damaged_inputs,
    ),
)


def examine_pipeline(subject: PipelineSubject) -> Examination[PipelineSubject]:
    """The checks of one pipeline; nothing runs before an outcome is asked for."""
    return Examination(PIPELINE_CHECKS, subject)


class PipelineTests:
    """Eight tests of a pipeline, for pytest; the checks are those of `watersmeet plugins check`.

    from watersmeet.testing import PipelineTests

    class TestChart(PipelineTests):
        pipeline = "chart-to-table"
    """

    pipeline: ClassVar[str] = ""
    settings: ClassVar[Mapping[str, Any]] = {}
    limit_s: ClassVar[float] = LIMIT_S
    _examined: ClassVar[dict[type, Examination[PipelineSubject]]] = {}

    def inputs(self) -> Sequence[Path] | None:
        """Files for one run. None: made-up ones of the types that the spec names."""
        return None

    def reply(self, prompt: str, picture: Any) -> str:
        """What the scripted model answers."""
        return "ok"

    def examination(self) -> Examination[PipelineSubject]:
        """The checks of this class, whose parts are made once for all its tests."""
        if type(self) not in self._examined:
            if not self.pipeline:
                raise TypeError(
                    f"{type(self).__name__} names no pipeline; add a line such as: pipeline = 'chart-to-table'"
                )
            own = None if type(self).reply is PipelineTests.reply else self.reply
            self._examined[type(self)] = examine_pipeline(
                PipelineSubject(
                    pipeline=self.pipeline,
                    settings=self.settings,
                    inputs=self.inputs(),
                    reply=own,
                    limit_s=self.limit_s,
                )
            )
        return self._examined[type(self)]


for _check in PIPELINE_CHECKS:
    _test = as_test(_check)
    setattr(PipelineTests, _test.__name__, _test)
