"""watersmeet from Python: what `load` gives, on the built-in model and on small ones."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import watersmeet
from watersmeet.cli.fresh import new_command
from watersmeet.cli.run import run_pipeline
from watersmeet.core.errors import CheckpointError, DecodeError, PluginError, UsageError
from watersmeet.core.stream import pack

run = watersmeet.Engine.run
PICTURE = {"scale": 1.0, "patch": 8, "max_patches": 16, "channels": 4}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A file of two conversations about pictures of one colour."""
    folder = tmp_path_factory.mktemp("api")
    path = folder / "rows.jsonl"
    lines = []
    for colour in ("red", "blue"):
        Image.new("RGB", (16, 16), colour).save(folder / f"{colour}.png")
        question = [{"type": "image", "image": f"{colour}.png"}, {"type": "text", "text": "Which colour?"}]
        answer = [{"type": "text", "text": f"It is {colour}."}, {"type": "symbols", "symbols": ["<mark>"]}]
        lines.append({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def make(rows, out, **changes):
    how = {"rows": [rows], "shape": "micro", "modality": "image", "vocab": 320, "seed": 0}
    how["assignments"] = [f"image.{key}={value}" for key, value in PICTURE.items()]
    return new_command(out, **(how | changes))


@pytest.fixture(scope="module")
def fresh(rows):
    make(rows, rows.parent / "fresh")
    return rows.parent / "fresh"


@pytest.fixture(scope="module")
def taught(rows, fresh):
    """The same model after enough steps to know the two rows by heart."""
    from watersmeet.cli.finetune import Request, finetune_command

    out, config = rows.parent / "run", rows.parent / "recipe.toml"
    config.write_text("[optimizer]\nlr = 8e-3\nadamw_lr = 8e-3\n[run]\nprecision = 'fp32'\ntensorboard = false\n")
    finetune_command(
        Request(
            model=str(fresh), data=rows, out=out, config=config, steps=40, batch_tokens=64, save_every=0, device="cpu"
        ),
        report=lambda line: None,
    )
    return watersmeet.load(out / "model")


def test_a_new_model_has_the_words_of_its_rows_and_is_the_same_every_time(rows, fresh, tmp_path):
    ws = watersmeet.load(fresh)
    writer = ws.opened.encoders["text"]
    assert {"<user>", "<assistant>", "<mark>"} <= set(writer.symbols) and set(ws.opened.encoders) == {"text", "image"}
    assert ws.opened.encoders["image"].settings["patch"] == 8
    make(rows, tmp_path / "again")
    again = watersmeet.load(tmp_path / "again").opened.model.state_dict()
    assert all(torch.equal(value, again[name]) for name, value in ws.opened.model.state_dict().items())
    make(rows, tmp_path / "other", seed=1)
    other = watersmeet.load(tmp_path / "other").opened.model.state_dict()
    assert any(not torch.equal(value, other[name]) for name, value in ws.opened.model.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"shape": "mikro"}, UsageError, "--preset is 'mikro', expected one of micro"),
        ({"modality": "imagge"}, UsageError, "did you mean 'image'"),
        (
            {"modality": None, "assignments": []},
            UsageError,
            "row 1 holds 'image', but the new model would read text alone",
        ),
        ({"modality": None}, UsageError, "name it with --modality"),
        ({"assignments": ["image.pach=3"]}, watersmeet.WatersmeetError, "pach"),
        ({"vocab": 100}, watersmeet.WatersmeetError, "vocab_size is 100 but 5 symbols and the 256 bytes alone take"),
    ],
)
def test_a_new_model_that_cannot_be_is_one_sentence_and_leaves_nothing(rows, tmp_path, changes, error, sentence):
    with pytest.raises(error) as caught:
        make(rows, tmp_path / "new", **changes)
    assert sentence in str(caught.value) and list(tmp_path.iterdir()) == []


def test_a_new_model_never_replaces_a_folder(rows, fresh):
    with pytest.raises(CheckpointError, match="is there already"):
        make(rows, fresh)


def test_parts_become_the_stream_that_the_encoders_give(fresh, rows):
    ws = watersmeet.load(str(fresh))
    text, image = (ws.opened.encoders[name] for name in ("text", "image"))
    path = rows.parent / "red.png"
    picture = Image.open(path)
    wanted = [*text.encode("a b"), *image.encode(path), text.encode_markup(["<mark>"])]
    forms = (path, picture, {"type": "image", "image": str(path)}, {"type": "image", "image": np.asarray(picture)})
    for form in (*forms, {"type": "image", "image": path.read_bytes()}):
        stream = ws.encode(["a b", form, {"type": "symbols", "symbols": "<mark>"}])
        assert [span.modality for span in stream.spans] == ["text", "image", "text"]
        assert all(torch.equal(a.data, b.data) and a.key == b.key for a, b in zip(stream.spans, wanted, strict=True))
    assert ws.encode("a b").n == ws.encode(["a b", ""]).n == text.encode("a b")[0].n
    # words that look like a symbol stay words
    assert text.symbols["<mark>"] not in ws.encode("<mark>").spans[0].data.tolist()


@pytest.mark.parametrize(
    ("parts", "error", "sentence"),
    [
        (3, UsageError, "part 0 is a int, expected a text, a path, a picture or"),
        (
            ["a", {"type": "image"}],
            UsageError,
            "part 1 has the fields 'type', expected 'type' and one of the type's own name",
        ),
        ([{"type": "image", "image": "x.png", "size": 1}], UsageError, "part 0 has the fields"),
        ([{"type": "sound", "sound": [1]}], UsageError, "part 0 is of type 'sound', but"),
        ([{"type": "audio", "audio": b"x"}], UsageError, "reads 'audio'"),
        ([{"type": "text", "text": 3}], UsageError, "part 0 is a text but holds a int"),
        ([Path("nowhere.png")], DecodeError, "there is no file nowhere.png"),
        ([Path(__file__)], UsageError, "files of type text/x-python"),
        ([{"type": "symbols", "symbols": "<nothing>"}], watersmeet.WatersmeetError, "<nothing>"),
        ([], UsageError, "there is nothing to continue"),
    ],
)
def test_a_part_that_cannot_be_read_is_one_sentence(fresh, parts, error, sentence):
    with pytest.raises(error) as caught:
        watersmeet.load(fresh).generate(parts)
    assert sentence in str(caught.value)


def test_generate_continues_as_the_logits_say(fresh):
    ws = watersmeet.load(fresh)
    done = ws.generate("It is", max_new=3)
    assert len(done.ids) == 3 and not done.finished
    ids = ws.encode("It is").spans[0].data.tolist()
    for found in done.ids:
        from watersmeet.core.stream import Span, Stream, content_key

        span = Span(modality="text", data=torch.tensor(ids), key=content_key(ids))
        model = ws.opened.model
        with torch.no_grad():
            wanted = model.logits(model(pack([Stream(spans=(span,))], model.modality_names)))[-1].argmax()
        assert found == int(wanted)
        ids.append(found)
    assert ws.generate("It is", max_new=8, temperature=1.0, seed=3) == ws.generate(
        "It is", max_new=8, temperature=1.0, seed=3
    )


def test_a_taught_model_is_asked_in_the_form_of_its_rows(taught, rows):
    for colour in ("red", "blue"):
        done = taught.ask([rows.parent / f"{colour}.png", "Which colour?"])
        assert done.text == f"It is {colour}." and done.finished, done
    talk = [
        {"role": "user", "content": [rows.parent / "red.png", "Which colour?"]},
        {"role": "assistant", "content": ["It is red.", {"type": "symbols", "symbols": ["<mark>"]}]},
        {"role": "user", "content": [Image.new("RGB", (16, 16), "blue"), "Which colour?"]},
    ]
    assert taught.ask(talk).text.startswith("It is ")
    with pytest.raises(UsageError, match="message 0 has role 'uzer'"):
        taught.ask([{"role": "uzer", "content": "x"}])


def test_what_was_never_taught_to_answer_says_so(fresh):
    with pytest.raises(UsageError, match="was not taught to answer; `watersmeet finetune` teaches it"):
        watersmeet.load(fresh).ask("Which colour?")


def test_official_models_are_asked_in_their_own_form(tmp_path):
    from watersmeet.core.official.random import random_kimi_linear
    from watersmeet.tokenizers.tiktoken.train import train_ranks

    ranks = train_ranks(["What is this? It is a line of text, user assistant system"] * 20, 320)
    random_kimi_linear(tmp_path, seed=1, vocab_size=ranks.count(b"\n") + 256)
    (tmp_path / "tiktoken.model").write_bytes(ranks)
    ws = watersmeet.load(tmp_path)
    asked = ws.ask("What is this?", max_new=4)
    assert len(asked.ids) <= 4 and asked.ids != ws.generate("What is this?", max_new=4).ids
    with pytest.raises(UsageError, match="writes its control tokens itself"):
        ws.ask([{"type": "symbols", "symbols": ["<|im_end|>"]}])


def test_a_server_only_runs_pipelines():
    ws = watersmeet.load("openai:some@http://localhost:9/v1")
    for call in (ws.encode, ws.generate, ws.ask):
        with pytest.raises(UsageError, match="is a server, which pipelines can ask with `run`"):
            call("a")


class Recorder:
    """A pipeline that writes down what it was called with."""

    def __init__(self, settings):
        self.settings = dict(settings)

    def run(self, inputs, model, out_dir, progress):
        progress("done", 1.0)
        told = [inputs, self.settings, None if model is None else model.name]
        return watersmeet.Result(out_dir=out_dir, summary=json.dumps(told))


@pytest.fixture
def recorder(monkeypatch):
    from watersmeet.plugins import registry
    from watersmeet.plugins.loader import LOADED, PluginRecord

    how = {"inputs": ("image/png", "video/mp4"), "pipeline": Recorder}
    specs = (
        watersmeet.PipelineSpec(name="record", **how),
        watersmeet.PipelineSpec(name="record-alone", own_model=True, **how),
    )
    about = {"plugin": "record", "target": "here", "distribution": "tests", "version": "1", "state": LOADED}
    mine = PluginRecord(pipelines=specs, **about)
    monkeypatch.setattr(registry, "_registry", registry.Registry([*registry.get_registry().records(), mine]))


def test_run_tells_files_from_settings_by_what_the_pipeline_takes(fresh, rows, recorder, tmp_path):
    ws = watersmeet.load(fresh)
    red, blue = (str(rows.parent / f"{colour}.png") for colour in ("red", "blue"))
    told = []
    done = ws.run(
        "record", red, image=[blue, Path(red)], target="x", out=tmp_path, progress=lambda *how: told.append(how)
    )
    assert (
        json.loads(done.summary) == [[red, blue, red], {"target": "x"}, ws.name] and done.out_dir == tmp_path and told
    )
    assert ws.run("record", image=red).out_dir.is_dir()
    # one with a model of its own is given no other, and none is loaded for it
    assert json.loads(ws.run("record-alone", image=red).summary) == [[red], {}, None]
    done = run_pipeline("record-alone", [red], out=tmp_path, model="a model that is not there")
    assert json.loads(done.summary) == [[red], {}, None]
    with pytest.raises(DecodeError, match=r"there is no file gone.png"):
        ws.run("record", image="gone.png")
    with pytest.raises(UsageError, match="input 0 of record is a Image, expected the path of a file"):
        ws.run("record", image=Image.new("RGB", (2, 2)))
    with pytest.raises(PluginError, match="did you mean 'record'"):
        ws.run("recorder")


def test_settings_that_a_pipeline_does_not_know_are_its_own_error(fresh, rows):
    with pytest.raises(UsageError, match="no setting 'targt'; did you mean 'target'"):
        watersmeet.load(fresh).run("screenshot-to-code", image=rows.parent / "red.png", targt="html")


def test_what_cannot_be_loaded_is_one_sentence():
    with pytest.raises(CheckpointError, match="did you mean 'nano'"):
        watersmeet.load("nanno")
    with pytest.raises(UsageError, match="dtype is 'half'"):
        watersmeet.load(dtype="half")


def documented(root, monkeypatch, wanted):
    """Run the blocks of the page on Python whose text is wanted, one after the other in one program."""
    monkeypatch.chdir(root)
    program = {}
    for block in re.findall(
        r"```python\n(.*?)```", (root / "docs/python.md").read_text(encoding="utf-8"), flags=re.DOTALL
    ):
        if wanted(block):
            exec(compile(block, "docs/python.md", "exec"), program)
    return program


def test_what_the_page_on_python_says_runs(root, monkeypatch):
    program = documented(root, monkeypatch, lambda block: ".run(" not in block)
    # a model that was taught layouts and steps may have nothing to add to a word
    done = program["done"]
    assert (done.ids or done.finished) and done.logprob < 0 and program["stream"].n > 0


@pytest.mark.slow
def test_the_pipeline_of_the_page_on_python_runs(root, monkeypatch, tmp_path):
    monkeypatch.setattr(watersmeet.Engine, "run", lambda self, *a, out, **k: run(self, *a, out=tmp_path / out, **k))
    program = documented(root, monkeypatch, lambda block: "load(" in block or ".run(" in block)
    assert (tmp_path / "out/demo" / program["result"].files[0]).is_file()
