"""Pages of one's own as rows: what is learnt is the layout of the page, what is asked is what use asks."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from watersmeet.__main__ import main
from watersmeet.core.errors import RenderError, UsageError
from watersmeet.pipelines.browser.find import find_chromium, find_pages
from watersmeet.pipelines.data import rows as work
from watersmeet.pipelines.finetune.dataset import open_conversations
from watersmeet.pipelines.layout import markup
from watersmeet.pipelines.layout.prompt import prompt_spans, training_stream
from watersmeet.pipelines.layout.regions import Regions

PAGE = """<!doctype html><html><head><meta charset="utf-8"><style>body{{margin:20px;font:16px Arial}} .b{{border:2px solid #000;padding:12px}}
</style></head><body><h1>{title}</h1><p>First words of {title}</p><div class="b"><a href="#">A link to somewhere</a>
<p>Some more words in a box</p></div><button>Send it</button></body></html>"""
SIZE = (640, 420)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Four pages, one of them a copy, one almost empty; a quarter held out."""
    try:
        find_chromium()
    except RenderError as error:
        pytest.skip(str(error))
    root = tmp_path_factory.mktemp("own")
    pages = root / "pages"
    (pages / "deep").mkdir(parents=True)
    for name, title in (("a.html", "Apples"), ("b.HTML", "Berries"), ("deep/c.htm", "Apples")):
        (pages / name).write_text(PAGE.format(title=title), "utf-8")
    (pages / "empty.html").write_text("<p>Nothing</p>", "utf-8")
    (pages / "notes.txt").write_text("no page")
    found = find_pages([pages])
    recipe = work.Recipe(sizes=(SIZE,), reader="page", worn=1)
    said = []
    result = work.write_rows(found, root / "rows.jsonl", recipe, processes=1, say=said.append)
    return root, found, result


def read(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_every_page_once_and_reasons_for_the_rest(made):
    root, found, result = made
    assert [page.name for page in found] == ["a.html", "b.HTML", "c.htm", "empty.html"]
    assert result.rows == 4 and result.held == 0
    assert result.left_out == {"shows what another view shows": 1, "fewer than three lines": 1}
    # one row of each view as the page has it and one as a worse reader does, of one picture
    pictures = [row["messages"][0]["content"][0]["image"] for row in read(root / "rows.jsonl")]
    assert pictures[0] == pictures[1] != pictures[2] == pictures[3]
    assert sorted(p.name for p in root.iterdir()) == ["pages", "rows.jsonl", "rows.media"]


def test_the_answer_is_the_page(made):
    root, _, _ = made
    question, answer = (message["content"] for message in read(root / "rows.jsonl")[0]["messages"])
    regions = Regions.from_json(question[1]["regions"])
    assert Image.open(root / question[0]["image"]).size == (regions.width, regions.height) == SIZE
    tree = markup.decode(answer[0]["symbols"], regions).tree
    lines = {(node.kind, line.text) for node in tree.walk() for line in node.lines}
    assert {("h1", "Apples"), ("text", "First words of Apples"), ("link", "A link to somewhere")} <= lines
    assert ("button", "Send it") in lines


def test_a_row_is_asked_what_use_asks_and_learns_what_training_learns(made):
    """Token for token what the prompt of the pipeline is, and what the shipped model was trained on."""
    root, _, _ = made
    data = open_conversations("train", path=str(root / "rows.jsonl"), model="nano")
    for index, row in enumerate(read(root / "rows.jsonl")):
        question, answer = (message["content"] for message in row["messages"])
        encoders = data.reading.encoders
        picture = Image.open(root / question[0]["image"]).convert("RGB")
        prompt = prompt_spans(encoders, picture, question[1]["regions"])
        wanted = training_stream(encoders, prompt, answer[0]["symbols"])
        found = data.sample(index, np.random.default_rng(0))

        def columns(stream, name):
            return torch.cat([getattr(span, name).reshape(-1) for span in stream.spans])

        for name in ("data", "targets"):
            assert torch.equal(columns(found, name), columns(wanted, name)), name
        targets = columns(wanted, "targets")
        assert torch.equal(columns(found, "weight") * (targets >= 0), (targets >= 0).float())


def test_no_page_has_views_on_both_sides(tmp_path, made):
    _, found, _ = made
    recipe = work.Recipe(hold_out=0.5, seed=3)
    held = work.held_out(found, recipe)
    assert len(held) == 2 and held == work.held_out(list(reversed(found)), recipe)
    assert held != work.held_out(found, work.Recipe(hold_out=0.5, seed=4)) or held != work.held_out(
        found, work.Recipe(hold_out=0.5, seed=5)
    )
    with pytest.raises(UsageError, match="leaves none to learn from"):
        work.held_out(found[:1], recipe)


def test_a_stopped_run_goes_on_with_the_pages_that_are_left(tmp_path, made, monkeypatch):
    root, found, _ = made
    recipe = work.Recipe(sizes=(SIZE,), reader="page", hold_out=0.5, seed=2)
    monkeypatch.setattr(work, "_CHUNK", 1)
    done = []

    def some(task, tasks, **_):
        """The first pages only, and then the stop."""
        for path, arguments in tasks[:2]:
            task(*arguments, path)
            done.append(path.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "run_chunks", some)
    out = tmp_path / "rows.jsonl"
    with pytest.raises(KeyboardInterrupt):
        work.write_rows(found, out, recipe)
    assert not out.exists() and len(done) == 2

    def rest(task, tasks, **_):
        for path, arguments in tasks:
            if not path.exists():
                task(*arguments, path)
                done.append(path.name)
        return []

    monkeypatch.setattr(work, "run_chunks", rest)
    made_now = work.write_rows(found, out, recipe)
    assert len(done) == len(set(done)) == 4 and made_now.rows + made_now.held == 2
    both = read(out) + read(out.with_suffix(".held.jsonl"))
    assert len(both) == 2 and both[0] != both[1]
    # the same answers as in one go
    plain = {tuple(row["messages"][1]["content"][0]["symbols"]) for row in read(root / "rows.jsonl")}
    assert all(tuple(row["messages"][1]["content"][0]["symbols"]) in plain for row in both)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "640"], "expected WIDTHxHEIGHT"),
        (["--size", "1600x900"], "expected a width from 200 to 1280"),
        (["--size", "390x3000"], "expected a width from 200 to 1280 and, at that width, a height from 200 to 1181"),
        (["--reader", "eyes"], "expected picture or page"),
        (["--hold-out", "1"], "below 1"),
    ],
)
def test_wrong_words_are_one_sentence(tmp_path, capsys, words, said):
    (tmp_path / "a.html").write_text("<p>x</p>")
    out = tmp_path / "rows.jsonl"
    assert main(["data", "rows", str(tmp_path), "--out", str(out), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not out.exists()


def test_pages_that_are_not_there(tmp_path, capsys):
    assert main(["data", "rows", str(tmp_path), "--out", str(tmp_path / "rows.jsonl")]) == 2
    assert "no .html file in there" in capsys.readouterr().err
    assert main(["data", "rows", str(tmp_path / "gone"), "--out", str(tmp_path / "rows.jsonl")]) == 2
    assert "there is no such file or folder" in capsys.readouterr().err
    with pytest.raises(UsageError, match="ends in .jsonl"):
        work.write_rows([tmp_path], Path("rows.json"), work.Recipe())
