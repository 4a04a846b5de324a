"""`watersmeet bench screenshot-to-code`: several models, pages of one's own, and going on after a stop."""

import json

import pytest
from PIL import Image

from watersmeet.__main__ import main
from watersmeet.core.errors import RenderError
from watersmeet.pipelines.browser.find import find_chromium
from watersmeet.pipelines.screenshot_to_code import bench
from watersmeet.pipelines.task.kept import model_state

PAGE = "<!doctype html><body style='font:18px Arial;margin:30px'><h1>{0}</h1><p>Words about {0}</p><p>And some more of them</p>"


def row(view, method="model", look=0.5):
    return bench.Row(view=view, method=method, scores={"LOOK": look, "CODE": None}, seconds=1.0)


def test_rows_are_kept_and_a_torn_line_is_measured_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    kept = bench._kept(path, ["a", "b"])
    kept.add([row("one"), row("one", "other", 0.25)])
    kept.add([row("two")])
    again = bench._kept(path, ["a", "b"])
    assert again.rows == kept.rows and len(again.groups) == 2
    path.write_text(path.read_text()[:-20])
    torn = bench._kept(path, ["a", "b"])
    assert torn.rows == kept.rows[:2]
    torn.add([row("two")])
    assert bench._kept(path, ["a", "b"]).rows == kept.rows
    # rows of other models, methods or views are not mixed in
    assert bench._kept(path, ["a", "c"]).rows == []
    assert bench._kept(path, ["a", "b"]).rows == []


def test_a_model_that_was_trained_again_is_another(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"old")
    before = model_state(str(tmp_path))
    assert before == model_state(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"newer")
    assert model_state(str(tmp_path)) != before


@pytest.mark.parametrize("method", ["/model", "../../model", "..", "OCR, absolute"])
def test_pages_of_a_model_named_by_its_path_stay_below_the_folder(tmp_path, method):
    model = tmp_path / "model"
    made, keep = tmp_path / "made", tmp_path / "keep"
    for folder in (model, made):
        folder.mkdir()
        (folder / f"{folder.name}.txt").write_text(folder.name)
    view = bench.View(package="own", page=tmp_path / "a.html", width=1280, height=757)
    name = f"{tmp_path}{method}" if method.startswith("/") else method
    bench._keep(keep, view, name, made, Image.new("RGB", (4, 4)), Image.new("RGB", (4, 4)))
    assert (model / "model.txt").read_text() == "model" and len(list(model.iterdir())) == 1
    assert len(list(keep.rglob("made.txt"))) == len(list(keep.rglob("render.png"))) == 1


def test_part_of_the_views_is_taken_evenly(tmp_path):
    pages = [tmp_path / f"{name}.html" for name in "abcdef"]
    names = [view.name for view in bench.own_views(pages, 4)]
    assert len(bench.own_views(pages)) == 12 and len(set(names)) == 4
    assert names[0].endswith("/a 1280") and names[-1].endswith("/e 390")


@pytest.mark.slow
def test_own_pages_and_two_models_in_one_table(tmp_path, capsys):
    try:
        find_chromium()
    except RenderError as error:
        pytest.skip(str(error))
    from watersmeet.pipelines.models.local import built_in_folder

    (tmp_path / "pages").mkdir()
    for name in ("Apples", "Berries"):
        (tmp_path / "pages" / f"{name}.html").write_text(PAGE.format(name), "utf-8")
    out = tmp_path / "bench"
    words = ["bench", "screenshot-to-code", "--pages", str(tmp_path / "pages"), "--out", str(out), "--limit", "2"]
    words += ["--model", "nano", "--model", str(built_in_folder()), "--no-baselines"]
    assert main(words) == 0
    table = capsys.readouterr().out
    rows = [r for line in (out / "rows.jsonl").read_text("utf-8").splitlines()[1:] for r in json.loads(line)]
    # the same weights under two names score the same
    assert len(rows) == 4 and rows[0]["scores"] == rows[1]["scores"] and not any(r["failure"] for r in rows)
    assert "| nano |" in table and len(list((out / "regions").iterdir())) == 2
    before = (out / "rows.jsonl").read_text("utf-8")
    assert main(words) == 0 and capsys.readouterr().out == table and (out / "rows.jsonl").read_text("utf-8") == before
    assert main([*words, "--model", "nano"]) == 2
    assert "--model names nano twice" in capsys.readouterr().err
