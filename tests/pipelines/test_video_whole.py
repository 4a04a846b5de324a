"""The whole way of a recording, from the file to the files, with a model that has learnt nothing: whatever it says under the
grammar is a specification, and every claim of it is proven."""

import json
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from watersmeet.__main__ import main
from watersmeet.pipelines.layout import markup as layout
from watersmeet.pipelines.models.fresh import new_model
from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.prompt import VIDEO
from watersmeet.pipelines.video_to_spec.score import is_shown
from watersmeet.pipelines.video_to_spec.spec import Evidence, Screen, Source, Spec, Step, read_spec
from watersmeet.pipelines.video_to_spec.truth import Truth, write_truth
from watersmeet.testing import PipelineTests

SIZE, COUNT = (480, 320), 40
TIMES = tuple(i * 50_000 for i in range(COUNT))
PRESS = 18  # the page answers two frames later


def page(title, button, color):
    picture = Image.new("RGB", SIZE, "white")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(size=24)
    draw.text((30, 20), title, fill="black", font=font)
    draw.rounded_rectangle((30, 100, 190, 150), radius=6, fill=color)
    draw.text((60, 110), button, fill="white", font=font)
    draw.text((30, 220), f"Words about {title}", fill="black", font=font)
    return np.asarray(picture)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory, film):
    """One recording with its truth: a press on a button leads to another page."""
    folder = tmp_path_factory.mktemp("recordings")
    first, second = page("Orders", "Create", (30, 90, 200)), page("Invoices", "Send", (200, 60, 30))
    pixels = [first if i < PRESS + 2 else second for i in range(COUNT)]
    film(folder / "one.mp4", pixels, TIMES, base=Fraction(1, 1_000_000))
    screens = tuple(
        Screen(id=f"s{i}", title=title, first_seen_s=TIMES[frame] / 1e6, thumbnail=f"frames/s{i}.png")
        for i, title, frame in ((1, "Orders", 0), (2, "Invoices", PRESS + 2))
    )
    step = Step(
        index=1, start_s=TIMES[PRESS] / 1e6, end_s=TIMES[PRESS + 2] / 1e6, action="click", target="Create", text=None,
        box=(30.0, 100.0, 190.0, 150.0), from_screen="s1", to_screen="s2",
        evidence=(Evidence(t_s=TIMES[PRESS] / 1e6, frame=PRESS),), confidence=1.0,
    )  # fmt: skip
    source = Source(path="one.mp4", duration_s=2.0, frames=COUNT, width=SIZE[0], height=SIZE[1])
    spec = Spec(source=source, screens=screens, steps=(step,), features=(), patterns=(), open_questions=())
    truth = Truth(
        spec=spec, times_us=TIMES, shown=(), cursor=False, variations=("no pointer",), pages=("generated",), split="val",
        seed=1,
    )  # fmt: skip
    write_truth(truth, folder / "one.json")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A micro model with the symbols of both markups."""
    folder = tmp_path_factory.mktemp("model") / "micro"
    symbols = list(dict.fromkeys((*layout.symbols(), *markup.own_symbols())))
    new_model(
        folder,
        texts=["Orders Create Invoices Send Words about"] * 3,
        symbols=symbols,
        modalities={"video": VIDEO, "regions": {}},
        vocab_size=len(symbols) + 320,
    )
    return folder


def test_every_claim_of_whatever_a_model_says_is_proven(recordings, model, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["run", "video-to-spec", str(recordings / "one.mp4"), "--out", str(out), "--model", str(model)]
    assert main([*words, "--set", f"truth={recordings / 'one.json'}"]) == 0, capsys.readouterr().err
    spec = read_spec(out / "spec.json")
    assert (spec.source.path, spec.source.frames, spec.source.width) == ("one.mp4", COUNT, SIZE[0])
    assert spec.steps and all(is_shown(one, TIMES) for _, proof in spec.proofs() for one in proof)
    scores = json.loads((out / "scores.json").read_text())
    assert scores["model"] == str(model) and 0.0 <= scores["scores"]["step_f1"] <= 1.0
    for _, proof in spec.proofs():
        for one in proof:
            with Image.open(out / f"frames/frame-{one.frame:06d}.png") as picture:
                red, _, blue = picture.convert("RGB").getpixel((40, 140))
            assert (red > blue) == (one.frame >= PRESS + 2)


def test_the_benchmark_measures_it_blanked_too(recordings, model, tmp_path, capsys):
    words = [
        "bench",
        "video-to-spec",
        "--data",
        str(recordings),
        "--model",
        str(model),
        "--out",
        str(tmp_path),
        "--blank",
    ]
    assert main(words) == 0, capsys.readouterr().err
    table = json.loads((tmp_path / "table.json").read_text())
    assert list(table["readers"])[1:] == [str(model), f"{model}, picture blanked"] and table["true_steps"] == 1
    assert all(one["unproven"] == one["failures"] == 0 for one in table["readers"].values())
    assert list(table["variations"]) == ["no pointer"]
    naive = next(iter(table["readers"].values()))
    assert naive["step_f1"] == 1.0 and naive["whole"] == 0.0 and naive["start_error_s"] == pytest.approx(0.1)


def test_a_model_of_the_other_task_is_refused(recordings, tmp_path, capsys):
    new_model(tmp_path / "model", texts=["Orders"], vocab_size=300)
    words = ["run", "video-to-spec", str(recordings / "one.mp4"), "--out", str(tmp_path / "out")]
    assert main([*words, "--model", str(tmp_path / "model")]) == 2
    assert "has no video modality, which video-to-spec needs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


class TestContract(PipelineTests):
    """What any pipeline is held against."""

    pipeline = "video-to-spec"
