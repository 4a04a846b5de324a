"""`watersmeet bench video-to-spec`: recordings of which everything is known, models and a naive reader, one table.

Every reader gets the file alone. One that fails on a recording has found nothing there and stays in the sums. What plain
code sees of a recording is seen once for a model and for the same model with its picture blanked.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from watersmeet.core.errors import UsageError, WatersmeetError
from watersmeet.pipelines.models.local import LocalModel, load_local
from watersmeet.pipelines.task.kept import Kept, evenly, model_state, state_of
from watersmeet.pipelines.video_to_spec.ask import ask_steps
from watersmeet.pipelines.video_to_spec.baseline import difference_baseline, one_a_second
from watersmeet.pipelines.video_to_spec.pipeline import encoders_of, watch
from watersmeet.pipelines.video_to_spec.score import Counts, count, scores_of
from watersmeet.pipelines.video_to_spec.spec import Spec, write_spec
from watersmeet.pipelines.video_to_spec.truth import Truth, read_truth
from watersmeet.plugins.registry import get_registry

NAIVE = "one frame a second, differences"
BLANKED = "{}, picture blanked"
MAKE = "watersmeet data recordings --out data/recordings-val --count 40 --split val --seed 1"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One reader on one recording. seconds: how long it took. length_s: of the recording. failure: why it found nothing."""

    recording: str
    reader: str
    counts: Counts
    seconds: float
    length_s: float
    variations: tuple[str, ...]
    failure: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Row":
        """From plain values, as they stand in a file."""
        read = {"counts": Counts(**values["counts"]), "variations": tuple(values["variations"])}
        return cls(**{**values, **read})


Found = tuple[str, float, Callable[[], Spec]]
"""Name of a reader, seconds that were spent for it already, and its work."""


def recordings(data: Path, limit: int | None = None) -> list[Path]:
    """The videos of `data` of which the truth lies beside them, at most `limit`, evenly taken. Raises UsageError for none."""
    found = [path.with_suffix(".mp4") for path in sorted(data.glob("*.json")) if path.with_suffix(".mp4").is_file()]
    if not found:
        raise UsageError(f"no recordings with their truth in {data}; run `{MAKE}` first, or give --data")
    return evenly(found, limit)


def run(
    *,
    models: Sequence[str],
    data: Path,
    out_dir: Path,
    limit: int | None = None,
    blank: bool = False,
    with_baseline: bool = True,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> str:
    """Run models and the baseline on recordings; returns the tables.

    Writes table.md and table.json, every specification that was found (`specs/`) and all rows (`rows.jsonl`, as they come:
    a run that was stopped goes on behind them when what it measures is the same).
    """
    videos = recordings(data, limit)
    loaded = {name: load_local(name) for name in models}
    for model in loaded.values():
        encoders_of(model)  # says what is missing before anything is measured
    truths = [path.with_suffix(".json") for path in videos]
    what = [*models, *map(model_state, models), state_of([*videos, *truths]), f"blank {blank} naive {with_baseline}"]
    kept = Kept(out_dir / "rows.jsonl", what, read=Row.of, write=asdict)
    done = {row.recording for row in kept.rows}
    readers = with_baseline + len(models) * (1 + blank)
    for number, path in enumerate(videos):
        if path.stem in done:
            continue
        truth = read_truth(path.with_suffix(".json"))
        rows = []
        for reader, spent, work in _readers(path, truth, loaded, blank, with_baseline):
            rows.append(_row(path, truth, reader, spent, work, out_dir / "specs"))
            progress(f"{path.stem}: {reader} {_short(rows[-1])}", (number + len(rows) / readers) / len(videos))
        kept.add(rows)
    text = markdown(kept.rows)
    (out_dir / "table.md").write_text(text, encoding="utf-8")
    (out_dir / "table.json").write_text(json.dumps(table(kept.rows), indent=1) + "\n", encoding="utf-8")
    return text


def _readers(
    path: Path, truth: Truth, models: Mapping[str, LocalModel], blank: bool, with_baseline: bool
) -> Iterator[Found]:
    if with_baseline:
        yield NAIVE, 0.0, lambda: naive(path, truth)
    for name, model in models.items():
        yield from _of_model(path, name, model, blank)


def _of_model(path: Path, name: str, model: LocalModel, blank: bool) -> Iterator[Found]:
    """A model, and the same one blanked, on what is seen once."""
    started = time.monotonic()
    try:
        sight = watch(path, encoders_of(model), lambda share: None)
    except WatersmeetError as error:
        failure = error

        def fail() -> Spec:
            raise failure

        spent, work, blanked = time.monotonic() - started, fail, fail
    else:
        spent = time.monotonic() - started

        def work() -> Spec:
            return ask_steps(model, sight, progress=lambda share: None).spec

        def blanked() -> Spec:
            return ask_steps(model, sight, blank=True, progress=lambda share: None).spec

    yield name, spent, work
    if blank:
        yield BLANKED.format(name), spent, blanked


def naive(path: Path, truth: Truth) -> Spec:
    """What differences of one frame a second say. Raises DecodeError."""
    with get_registry().encoder("video", {}).video(path) as video:
        frames = ((frame.time_us, frame.pixels) for frame in video.frames())
        return difference_baseline(one_a_second(frames), truth.spec.source)


def _row(path: Path, truth: Truth, reader: str, spent: float, work: Callable[[], Spec], specs: Path) -> Row:
    started = time.monotonic()
    failure = ""
    try:
        spec = work()
    except WatersmeetError as error:
        failure = str(error)
        spec = Spec(source=truth.spec.source, screens=(), steps=(), features=(), patterns=(), open_questions=())
    seconds = spent + time.monotonic() - started
    # a reader may be the path of a model
    folder = specs / (re.sub(r"[^\w.-]+", "-", reader).strip("-.") or "-")
    folder.mkdir(parents=True, exist_ok=True)
    write_spec(spec, folder / f"{path.stem}.json")
    return Row(
        recording=path.stem,
        reader=reader,
        counts=count(spec, truth),
        seconds=seconds,
        length_s=truth.spec.source.duration_s,
        variations=truth.variations,
        failure=failure,
    )


def _short(row: Row) -> str:
    scores = scores_of(row.counts)
    return row.failure or f"step F1 {_share(scores.step_f1)}, whole {_share(scores.whole)}"


# ---- tables ------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> dict[str, Any]:
    """Sums over all recordings by reader, and step F1 and whole steps by variation."""
    readers = list(dict.fromkeys(row.reader for row in rows))
    variations = sorted({one for row in rows for one in row.variations})
    return {
        "recordings": len({row.recording for row in rows}),
        "true_steps": _sum(_of(rows, readers[0])).true_steps if readers else 0,
        "readers": {reader: _reader(_of(rows, reader)) for reader in readers},
        "variations": {one: _variation([row for row in rows if one in row.variations], readers) for one in variations},
    }


def _of(rows: Sequence[Row], reader: str) -> list[Row]:
    return [row for row in rows if row.reader == reader]


def _sum(rows: Sequence[Row]) -> Counts:
    return sum((row.counts for row in rows), Counts())


def _reader(rows: Sequence[Row]) -> dict[str, Any]:
    length_s = sum(row.length_s for row in rows)
    return asdict(scores_of(_sum(rows))) | {
        "seconds_per_second": sum(row.seconds for row in rows) / length_s if length_s else None,
        "failures": sum(bool(row.failure) for row in rows),
    }


def _variation(rows: Sequence[Row], readers: Sequence[str]) -> dict[str, Any]:
    scores = {reader: scores_of(_sum(_of(rows, reader))) for reader in readers}
    return {
        "recordings": len({row.recording for row in rows}),
        "true_steps": _sum(_of(rows, readers[0])).true_steps,
        "readers": {reader: {"step_f1": one.step_f1, "whole": one.whole} for reader, one in scores.items()},
    }


def markdown(rows: Sequence[Row]) -> str:
    """One table of readers and one of variations."""
    all_ = table(rows)
    readers: Mapping[str, Any] = all_["readers"]
    heads = [
        "step F1", "whole steps", "action", "target", "typed text", "start error, ms", "screens exact", "dropdowns",
        "unproven claims", "s of work per s of video",
    ]  # fmt: skip
    lines = [f"{all_['recordings']} recordings, {all_['true_steps']} true steps.", ""]
    lines += ["| reader | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for reader, one in readers.items():
        late = one["start_error_s"]
        cells = [
            *(_share(one[name]) for name in ("step_f1", "whole", "action", "target", "typed")),
            "–" if late is None else f"{1000 * late:.0f}",
            _share(one["screens_exact"]),
            _share(one["dropdowns"]),
            str(one["unproven"]),
            _share(one["seconds_per_second"]),
        ]
        lines.append(f"| {reader} | " + " | ".join(cells) + " |")
    lines += [f"\n{reader} failed on {one['failures']}." for reader, one in readers.items() if one["failures"]]
    lines += ["", "Step F1 / whole steps of recordings with:", ""]
    lines += [
        "| variation | recordings | true steps | " + " | ".join(readers) + " |",
        "|---|" + "---:|" * (2 + len(readers)),
    ]
    for name, one in all_["variations"].items():
        pairs = [f"{_share(pair['step_f1'])} / {_share(pair['whole'])}" for pair in one["readers"].values()]
        lines.append(f"| {name} | {one['recordings']} | {one['true_steps']} | " + " | ".join(pairs) + " |")
    return "\n".join(lines) + "\n"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
