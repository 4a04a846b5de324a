"""Rows with a modality that nothing here knows of: the example package, found by its entry point, in one process and in two."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from watersmeet.core.training.packing import sample_order

PACKAGE = Path(__file__).parents[2] / "examples" / "watersmeet-timeseries"
ROWS, STEPS = 4, 1
# a step reads every row: two a process, or all four in one; a fifth would not fit
TOKENS = {2: 100, 1: 190}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables of a process in which the example package is installed, as far as anybody can tell."""
    site = tmp_path_factory.mktemp("site")
    info = site / "watersmeet_timeseries-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: watersmeet-timeseries\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[watersmeet.plugins]\ntimeseries = watersmeet_timeseries\n")
    path = os.pathsep.join([str(site), str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "WATERSMEET_PLUGINS": "watersmeet,timeseries"}


def command(*words):
    return [sys.executable, "-P", "-m", "watersmeet", *map(str, words)]


def once(environment, *words):
    done = subprocess.run(command(*words), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def seed_that_parts():
    """A seed with which the rows of an epoch are dealt to the two processes alike in all epochs, and the first half of them."""
    for seed in range(10_000):
        parts = [set(sample_order(seed, epoch, ROWS, rank=0, world=2).tolist()) for epoch in range(STEPS)]
        if all(part in (parts[0], set(range(ROWS)) - parts[0]) for part in parts):
            return seed, parts[0]
    raise AssertionError("no such seed")


@pytest.fixture(scope="module")
def taught(environment, tmp_path_factory):
    """A fresh model over text, pictures and series, and rows of all three; those with series go to one process."""
    folder = tmp_path_factory.mktemp("stranger")
    seed, series_rows = seed_that_parts()
    Image.new("RGB", (32, 32), "red").save(folder / "red.png")
    np.savetxt(folder / "up.csv", np.arange(128.0), header="value", comments="")
    series = iter(({"type": "timeseries", "timeseries": "up.csv"}, {"type": "timeseries", "timeseries": [5, 1] * 64}))
    others = iter(({"type": "image", "image": "red.png"}, {"type": "text", "text": "sixteen letters "}))
    lines = []
    for row in range(ROWS):
        parts = [next(series if row in series_rows else others), {"type": "text", "text": "What is it?"}]
        messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": f"It is row {row}, so it is."}]
        lines.append(json.dumps({"messages": messages}) + "\n")
    (folder / "rows.jsonl").write_text("".join(lines))
    # a larger eps, since Adam makes whole steps of gradients that are nothing but rounding
    for world in TOKENS:
        (folder / f"recipe-{world}.toml").write_text(
            f"seed = {seed}\n[batch]\npool = {ROWS // world}\n[optimizer]\nns_dtype = 'float32'\neps = 1e-3\n[schedule]\nwarmup = 0\n"
            "[run]\nprecision = 'fp32'\ntensorboard = false\n"
        )
    made = once(
        environment, "models", "new", folder / "fresh", "--rows", folder / "rows.jsonl", "--modality", "image,timeseries",
        "--set", "image.patch=8", "--set", "image.scale=1.0", "--set", "image.channels=4", "--set", "image.max_patches=16",
    )  # fmt: skip
    assert "reads text, image, timeseries" in made
    return folder


def finetune(folder, out, world):
    words = [
        "--model",
        folder / "fresh",
        "--data",
        folder / "rows.jsonl",
        "--out",
        out,
        "--steps",
        STEPS,
        "--device",
        "cpu",
    ]
    return ("finetune", *words, "--config", folder / f"recipe-{world}.toml", "--batch-tokens", TOKENS[world])


def test_rows_of_text_pictures_and_series_teach_one_model(environment, taught, tmp_path):
    said = once(environment, *finetune(taught, tmp_path / "run", 1), "--dry-run")
    assert "[timeseries: 16 tokens]" in said and "[image: 16 tokens]" in said and "embedder of timeseries" in said
    once(environment, *finetune(taught, tmp_path / "run", 1))
    before, after = (load_file(place / "model.safetensors") for place in (taught / "fresh", tmp_path / "run" / "model"))
    for name in ("text", "image", "timeseries"):
        moved = [
            k for k in before if k.startswith(f"embedders.{name}.") and not torch.equal(before[k].bfloat16(), after[k])
        ]
        assert moved, name
    described = json.loads((tmp_path / "run" / "model" / "processor.json").read_text())
    assert described["processor"]["modalities"]["timeseries"] == {"patch": 8, "max_samples": 4096}
    (tmp_path / "asked.json").write_text(
        json.dumps([{"role": "user", "content": [{"type": "timeseries", "timeseries": [1, 2, 3]}]}])
    )
    words = ("--model", tmp_path / "run" / "model", "--messages", tmp_path / "asked.json", "--max-new", 2, "--json")
    assert len(json.loads(once(environment, "generate", *words))["ids"]) == 2


@pytest.mark.slow
def test_two_processes_of_which_one_has_the_series_come_to_what_one_comes_to(environment, taught, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = environment | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    both = []
    for rank in range(2):
        log = (tmp_path / f"log.{rank}").open("wb")
        own = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        both.append(subprocess.Popen(command(*finetune(taught, tmp_path / "two", 2)), env=own, stdout=log, stderr=log))
        log.close()
    try:
        codes = [process.wait(1200) for process in both]
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert codes == [0, 0], "\n".join((tmp_path / f"log.{rank}").read_text()[-3000:] for rank in range(2))
    once(environment, *finetune(taught, tmp_path / "one", 1))
    end = f"checkpoints/step-{STEPS:08}/model.safetensors"
    two, one = (load_file(tmp_path / name / end) for name in ("two", "one"))
    assert set(two) == set(one)
    for name, value in one.items():
        torch.testing.assert_close(
            two[name], value, rtol=2e-3, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    logs = [
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("two", "one")
    ]
    for mine, other in zip(*([r for r in log if r["kind"] == "train"] for log in logs), strict=True):
        assert (
            mine["targets"] == other["targets"]
            and mine["tokens"] == other["tokens"]
            and mine["loss"] == pytest.approx(other["loss"], rel=1e-5)
        )
