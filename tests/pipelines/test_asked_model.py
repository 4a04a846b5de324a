"""Local models with an official vocabulary, asked for a page the way a server is."""

import json
from types import SimpleNamespace

import pytest
from PIL import Image

from watersmeet.__main__ import main
from watersmeet.core.errors import RemoteError, UsageError
from watersmeet.core.geometry import Box
from watersmeet.core.official.random import random_k3, random_kimi_linear
from watersmeet.pipelines.layout.regions import Regions, TextRegion
from watersmeet.pipelines.models.asked import AskedModel, asked, picture_modality
from watersmeet.pipelines.models.local import load_local
from watersmeet.pipelines.screenshot_to_code.server import ask_for_page
from watersmeet.tokenizers.tiktoken.train import train_ranks

RANKS = train_ranks(["Write one page that looks like this screenshot. message user assistant response"] * 3, 320)
PICTURE = Image.effect_noise((64, 40), 60).convert("RGB")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("asked")
    size = RANKS.count(b"\n") + 256
    for name, make in (("linear", random_kimi_linear), ("k3", random_k3)):
        make(root / name, seed=5, vocab_size=size)
        (root / name / "tiktoken.model").write_bytes(RANKS)
    return root


@pytest.mark.parametrize("kind", ["linear", "k3"])
def test_an_answer_is_that_of_the_command_line(kind, folders, capsys):
    local = load_local(str(folders / kind))
    model = asked(local, 12)
    assert isinstance(model, AskedModel) and not model.sees
    words = [
        "generate",
        "Write one page",
        "--model",
        str(folders / kind),
        "--chat",
        "--greedy",
        "--max-new",
        "12",
        "--json",
    ]
    assert main([*words, *(["--no-thinking"] if kind == "k3" else [])]) == 0
    message = json.loads(capsys.readouterr().out)["message"]
    assert model.ask("Write one page", PICTURE) == message["content"]


def test_a_picture_is_shown_to_a_model_that_sees(folders, tmp_path):
    assert (
        main(["graft", "--base", str(folders / "k3"), "--modality", "image,regions", "--out", str(tmp_path / "g")]) == 0
    )
    model = asked(load_local(str(tmp_path / "g")), 12)
    assert model.sees and picture_modality(model.local) == "image"
    shown = []
    encode = model.local.encoders["image"].encode
    model.local.encoders["image"] = SimpleNamespace(encode=lambda item: shown.append(item) or encode(item))
    other = Image.new("RGB", (64, 40), "red")
    assert model.ask("Write", PICTURE) != model.ask("Write", other) and shown == [PICTURE, other]
    shown.clear()
    assert model.ask_parts(["Write", other, "and", PICTURE]) != model.ask_parts(["Write", PICTURE, "and", other])
    assert shown == [other, PICTURE, PICTURE, other]


def test_other_models_are_left_as_they_are():
    assert asked("a server", 12) == "a server"
    local = load_local("nano")
    assert asked(local, 12) is local
    two = SimpleNamespace(name="m", encoders={"image": 1, "moonvit": 2, "regions": 3, "text": 4})
    with pytest.raises(UsageError, match="image and moonvit read pictures in m"):
        picture_modality(two)


def test_a_model_that_does_not_see_is_told_what_was_read(folders, monkeypatch):
    regions = Regions(
        width=64,
        height=40,
        background=(255, 255, 255),
        texts=(TextRegion(box=Box(x0=1, y0=2, x1=30, y1=9), text="Sign in"),),
        shapes=(),
    )
    asked_for = []
    monkeypatch.setattr(AskedModel, "ask", lambda self, prompt, picture: asked_for.append(prompt) or "<p>Sign in</p>")
    model = asked(load_local(str(folders / "linear")), 12)
    assert ask_for_page(model, PICTURE, regions).html == "<!doctype html>\n<p>Sign in</p>"
    assert '{"texts": [["Sign in", 1, 2, 30, 9]], "boxes": []}' in asked_for[0] and "64 x 40 pixels" in asked_for[0]
    monkeypatch.setattr(AskedModel, "ask", lambda self, prompt, picture: "no page")
    with pytest.raises(RemoteError, match="answered without HTML; it begins 'no page'"):
        ask_for_page(model, PICTURE, regions)


@pytest.mark.parametrize("kind", ["linear", "k3"])
def test_the_pipeline_runs_with_published_folders(kind, folders, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(AskedModel, "ask", lambda self, prompt, picture: "<html><body><h1>Sign in</h1></body></html>")
    PICTURE.save(tmp_path / "shot.png")
    words = ["run", "screenshot-to-code", str(tmp_path / "shot.png"), "--out", str(tmp_path / "out")]
    assert main([*words, "--model", str(folders / kind)]) == 0, capsys.readouterr().err
    assert "Sign in" in (tmp_path / "out" / "index.html").read_text() and (tmp_path / "out" / "report.html").is_file()
