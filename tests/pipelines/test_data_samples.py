"""From rendered views to samples and training streams: alignment, purity, resuming."""

import importlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("faker")
pytest.importorskip("wordfreq")

from typer.testing import CliRunner

from watersmeet.cli.data import app as data_app
from watersmeet.core.errors import RenderError
from watersmeet.pipelines.browser.find import find_chromium
from watersmeet.pipelines.data import dataset as sets
from watersmeet.pipelines.data import samples
from watersmeet.pipelines.data.build import make_chunk, planned, stats
from watersmeet.pipelines.data.collect import read_chunk
from watersmeet.pipelines.data.plan import Job
from watersmeet.pipelines.data.show import _enlarged, draw_sample, find_sample, pretty
from watersmeet.pipelines.data.workers import run_chunks
from watersmeet.pipelines.layout import markup
from watersmeet.pipelines.layout.regions import Regions


def _job(page: str, width: int = 640, **other: object) -> Job:
    return Job(
        **(
            {"id": f"{page}-{width}", "package": "generated", "page": page, "width": width, "height": 420, "scroll": 0}
            | other
        )
    )  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small chunks: good pages, one page twice, one page that does not exist."""
    try:
        find_chromium()
    except RenderError as error:
        pytest.skip(str(error))
    root = tmp_path_factory.mktemp("data")
    broken = _job("gone.html", package="html5-boilerplate", id="gone")
    chunks = [[_job("3"), broken, _job("5")], [_job("3", id="again"), _job("12")]]
    for number, jobs in enumerate(chunks):
        make_chunk(
            jobs, root, root / "raw" / "train" / f"chunk-{number:05d}.zip", 2, root / "nano" / f"chunk-{number:05d}"
        )
    return root


@pytest.fixture(scope="module")
def train(root: Path) -> sets.LayoutDataset:
    return sets.LayoutDataset(root / "nano", "train")


@pytest.fixture(scope="module")
def plain(root: Path) -> sets.LayoutDataset:
    return sets.LayoutDataset(root / "nano", "val")


def test_a_broken_page_is_counted_and_the_others_stay(root: Path) -> None:
    import zipfile

    with zipfile.ZipFile(root / "raw" / "train" / "chunk-00000.zip") as archive:
        index = json.loads(archive.read("index.json"))
    assert index["counts"] == {"rendered": 2, "failed": 1}
    assert [job["id"] for job in index["jobs"] if "error" in job] == ["gone"]
    assert [record.job["id"] for record in read_chunk(root / "raw" / "train" / "chunk-00000.zip")] == ["3-640", "5-640"]
    assert stats(root / "nano")["counts"]["kept"] == 4


def test_views_with_the_same_lines_count_once(train: sets.LayoutDataset) -> None:
    assert [entry["id"] for _, entry in train.entries] == ["3-640", "5-640", "12-640"]
    assert train.dropped["duplicate"] == 1


def test_targets_spell_the_markup(plain: sets.LayoutDataset, root: Path) -> None:
    details = [
        json.loads(line)
        for file in sorted((root / "nano").glob("*/detail.jsonl"))
        for line in file.open(encoding="utf-8")
    ]
    wanted = {d["id"]: d["markup"].split() for d in details}
    for i, (_, entry) in enumerate(plain.entries):
        stream = plain.sample(i, np.random.default_rng(0))
        assert plain.markup_of(stream) == wanted[entry["id"]]
        learnt = [int(t) for span in stream.spans if span.targets is not None for t in span.targets if t >= 0]
        assert len(learnt) == len(wanted[entry["id"]]) + 1, "the end symbol is learnt too"
        assert [span.modality for span in stream.spans] == ["image", "regions", "text", "text"]


def test_each_position_predicts_the_next_id(plain: sets.LayoutDataset) -> None:
    stream = plain.sample(0, np.random.default_rng(0))
    ids = torch.cat([span.data if span.modality == "text" else torch.full((span.n,), -1) for span in stream.spans])
    targets = torch.cat(
        [span.targets if span.targets is not None else torch.full((span.n,), -100) for span in stream.spans]
    )
    where = torch.nonzero(targets >= 0).flatten()
    assert len(where) > 10
    assert torch.equal(targets[where], ids[where + 1])
    prompt = sum(span.n for span in stream.spans if span.modality != "text")
    assert int(where[0]) == prompt, "the first lesson stands at the symbol that opens the markup"


def test_a_sample_is_pure(train: sets.LayoutDataset) -> None:
    for i in range(len(train)):
        a, b = (train.sample(i, np.random.default_rng(5)) for _ in range(2))
        assert len(a.spans) == len(b.spans)
        for x, y in zip(a.spans, b.spans, strict=True):
            assert torch.equal(x.data, y.data) and torch.equal(x.coords, y.coords)
    different = {train.sample(0, np.random.default_rng(seed)).spans[-1].data.sum().item() for seed in range(8)}
    assert len(different) > 1


def test_shifted_references_agree_with_the_regions(train: sets.LayoutDataset) -> None:
    """A reference in the markup must name a region of the sample, whatever number the regions start from."""
    for seed in range(12):
        stream = train.sample(seed % len(train), np.random.default_rng(seed))
        regions = next(span for span in stream.spans if span.modality == "regions")
        shown: dict[str, set[int]] = {"t": set(), "s": set()}
        for row in regions.data.tolist():
            shown["ts"[row[0]]].add(row[-1])
        for symbol in train.markup_of(stream):
            name = symbol[1:-1]
            if name[0] in "ts" and name[1:].isdigit():
                assert int(name[1:]) in shown[name[0]]


def test_offsets_only_rename(train: sets.LayoutDataset) -> None:
    symbols = np.array([train._t0, train._t0 + 250, train._s0 + 3, 1])
    moved = sets._shift(sets._shift(symbols, train._t0, markup.MAX_TEXTS, 10), train._s0, markup.MAX_SHAPES, 159)
    assert moved.tolist() == [train._t0 + 10, train._t0 + 4, train._s0 + 2, 1]


def test_recolouring_keeps_shape_and_order() -> None:
    ramp = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(4, -1)
    out = sets.recolour(ramp, np.random.default_rng(2), 0.2)
    assert out.shape == ramp.shape and out.dtype == np.uint8 and not np.array_equal(out, ramp)
    assert (np.diff(out.reshape(-1, 3).astype(int), axis=0) >= 0).all()


def test_markup_reads_back_into_a_tree(root: Path) -> None:
    for file in (root / "nano").glob("*/detail.jsonl"):
        for line in file.open(encoding="utf-8"):
            detail = json.loads(line)
            decoded = markup.decode(detail["markup"].split(), Regions.from_json(detail["regions"]))
            assert not decoded.warnings
            assert len(decoded.unused_texts) <= 0.2 * len(detail["regions"]["texts"])


def test_show_draws_a_sample(root: Path) -> None:
    picture, about = draw_sample(root / "nano", "1")
    assert picture.width > 2 * 640 and about.startswith("5-640")
    assert draw_sample(root / "nano", "12-640")[1].startswith("12-640")
    with pytest.raises(samples.DataError, match="no sample 'x'"):
        draw_sample(root / "nano", "x")
    assert (
        pretty("<nav> <s0> <link> <t0> <link> <t1> </> <rule> <s1>")
        == "<nav><s0>\n  <link><t0>\n  <link><t1>\n<rule><s1>"
    )


def test_show_does_without_the_first_stage(root: Path) -> None:
    chunk, entry, detail = find_sample(root / "nano", "0")
    model_view = _enlarged(chunk, entry, detail["width"], detail["height"])
    rendered = next(read_chunk(root / "raw" / "train" / "chunk-00000.zip")).picture
    assert model_view.size == rendered.size
    difference = np.abs(np.asarray(model_view, float) - np.asarray(rendered, float)).mean()
    assert difference < 30, "patches put together in another order would look like another picture"


def test_the_command_line_speaks_of_samples(root: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    shown = run(data_app, ["show", str(root / "nano"), "5-640", "--out", str(tmp_path / "x.png")])
    assert shown.exit_code == 0 and (tmp_path / "x.png").stat().st_size > 1000
    assert "<" in (tmp_path / "x.txt").read_text("utf-8")
    counted = run(data_app, ["stats", str(root / "nano")])
    assert 'counts: {"kept": 4}' in counted.output
    assert run(data_app, ["fetch", "--split", "test"]).exception is not None


def test_samples_of_other_settings_are_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "nano", tmp_path / "nano")
    index_file = tmp_path / "nano" / "chunk-00000" / "index.json"
    index = json.loads(index_file.read_text())
    index["settings"]["image"]["patch"] = 16
    index_file.write_text(json.dumps(index))
    with pytest.raises(samples.DataError, match="other settings of the image encoder"):
        sets.LayoutDataset(tmp_path / "nano")
    with pytest.raises(samples.DataError, match="holds no samples"):
        sets.LayoutDataset(tmp_path / "nothing")


def test_the_recipe_opens_both_splits(root: Path) -> None:
    options = {"path": str(root / "nano"), "val_path": str(root / "nano")}
    assert sets.open_dataset("train", **options).augment is not None
    val = sets.open_dataset("val", **options)
    assert val.augment is None and set(val.modalities) == {"image", "regions", "text"}
    assert val.vocab_size > len(markup.symbols()) and val.files


WRITER = """
import os


def write(text, path):
    if text == "crash" or (text == "once" and not path.with_suffix(".tried").exists()):
        path.with_suffix(".tried").touch()
        os._exit(7)
    path.write_text(text)
"""


def test_a_build_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a child process imports its work by name, which it cannot do from a test file
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "chunk_writer.py").write_text(WRITER)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    write = importlib.import_module("chunk_writer").write
    said: list[str] = []
    tasks = [(tmp_path / name, (name,)) for name in ("a", "once", "crash", "b")]
    (tmp_path / "a").write_text("made earlier")
    assert run_chunks(write, tasks, processes=2, say=said.append) == [tmp_path / "crash"]
    assert (tmp_path / "a").read_text() == "made earlier"
    assert (tmp_path / "once").read_text() == "once" and (tmp_path / "b").read_text() == "b"
    assert any("crash ended with 7" in line for line in said)


def test_a_plan_that_was_begun_is_kept(tmp_path: Path) -> None:
    listing = tmp_path / "raw" / "train" / "plan.json"
    listing.parent.mkdir(parents=True)
    listing.write_text(json.dumps([_job("3").to_json()]))
    assert planned(tmp_path, "train", real=5, generated=5) == [_job("3")]


def test_a_finished_chunk_is_left_alone(root: Path) -> None:
    chunk = root / "nano" / "chunk-00001"
    before = {file.name: file.stat().st_mtime_ns for file in chunk.iterdir()}
    time.sleep(0.01)
    assert run_chunks(make_chunk, [(chunk, ([], root, root / "raw", 2))]) == []
    samples.measure_chunk(root / "raw" / "train" / "chunk-00001.zip", 2, chunk)  # another build that lost the race
    assert {file.name: file.stat().st_mtime_ns for file in chunk.iterdir()} == before


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SLOW = """
import sys
import time
from pathlib import Path

from watersmeet.pipelines.data.workers import run_chunks


def slow(path):
    time.sleep(0.4)
    path.write_text("done")


if __name__ == "__main__":
    import slow_writer

    run_chunks(slow_writer.slow, [(Path(sys.argv[1]) / str(i), ()) for i in range(40)], processes=1, per_process=40)
"""


def test_workers_end_when_who_started_them_was_killed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "slow_writer.py").write_text(SLOW)
    started = subprocess.Popen([sys.executable, str(tmp_path / "slow_writer.py"), str(out)])
    while not list(out.iterdir()) and started.poll() is None:
        time.sleep(0.1)
    started.kill()
    started.wait()
    time.sleep(1.0)  # what was begun may be done
    after = len(list(out.iterdir()))
    time.sleep(1.5)
    assert 1 <= len(list(out.iterdir())) == after < 40
