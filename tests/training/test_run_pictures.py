"""What a run shows of itself: TensorBoard files, the page with the curves, and the numbers in them."""

import struct
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from watersmeet.core.errors import UsageError
from watersmeet.core.model.depth import recorded_depth
from watersmeet.core.model.layer import Query, Residual
from watersmeet.core.model.ops import RMSNorm
from watersmeet.core.stream import pack
from watersmeet.core.training.board import Board, crc32c
from watersmeet.core.training.log import JsonlLog, read_log
from watersmeet.core.training.page import write_page
from watersmeet.kernels.attnres.reference import attnres_reference

sys.path.insert(0, str(Path(__file__).parent))
from test_trainer import trainer
from tiny_data import Echo, micro_model


def test_checksum_has_the_published_values():
    # RFC 3720, appendix B.4
    assert crc32c(b"\x00" * 32) == 0x8A9136AA and crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E and crc32c(b"123456789") == 0xE3069283


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def fields(data):
    """A reader of protobuf messages written from its specification: (number, value) pairs."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        yield number, value


def events(path):
    """Records of an event file, their checksums looked at."""
    data, at = path.read_bytes(), 0

    def masked(part):
        crc = crc32c(part)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8])
        body = data[at + 12 : at + 12 + size]
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == masked(body)
        yield dict(fields(body))
        at += 16 + size


def test_scalars_can_be_read_back_from_the_event_file(tmp_path):
    board = Board(tmp_path)
    board.add("train", 300, {"loss": 1.5, "loss_by_modality": {"dots": 2.0}, "load": [[1.0]], "bad": float("nan")})
    board.add("eval", 70_000, {"loss": -0.25})
    (path,) = tmp_path.glob("events.out.tfevents.*")
    version, first, second = events(path)
    assert version[3] == b"brain.Event:2" and first[2] == 300 and second[2] == 70_000
    values = [dict(fields(value)) for number, value in fields(first[5]) if number == 1]
    assert [(v[1], v[2]) for v in values] == [(b"train/loss", 1.5), (b"train/loss_by_modality/dots", 2.0)]
    Board(tmp_path).add("train", 1, {"loss": 1.0})
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2  # nobody writes into another one's file


def test_tensorboard_itself_reads_it(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = Board(tmp_path)
    for step in range(5):
        board.add("train", step, {"loss": step / 2})
    found = loader.EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in found.Scalars("train/loss")] == [(s, s / 2) for s in range(5)]


class Outline(HTMLParser):
    def __init__(self):
        super().__init__()
        self.captions, self.tags, self.links, self._inside = [], [], [], False

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        self._inside = tag == "figcaption"

    def handle_data(self, data):
        if self._inside:
            self.captions.append(data)
            self._inside = False


def test_a_run_leaves_a_page_with_every_curve_the_log_can_draw(tmp_path):
    options = {"schedule.steps": 6, "run.measure_every": 2, "run.eval_every": 3}
    run = trainer(tmp_path, val=True, **options)
    run.run()
    outline = Outline()
    outline.feed((tmp_path / "curves.html").read_text(encoding="utf-8"))
    wanted = ["loss (nats a token)", "loss by modality", "max attention logit", "update RMS / rate", "gradient norm"]
    for caption in wanted:
        assert caption in outline.captions, outline.captions
    assert sum(caption.startswith("expert load, ") for caption in outline.captions) == 2  # one heat map a modality
    assert any(caption.startswith("depth weights") for caption in outline.captions)
    assert not outline.links and "script" not in outline.tags  # nothing from elsewhere
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    train = [record for record in read_log(tmp_path / "log.jsonl") if record["kind"] == "train"]
    assert [("depth" in record) for record in train] == [False, True] * 3
    measured = train[1]
    assert 0 < measured["max_logit"] < 100 and "max_logit" not in train[0]
    assert 0.1 < measured["update_rms"]["muon"] < 0.25 and set(measured["grad_norms"]) >= {"router", "embedder"}
    assert measured["grad_norm"] == pytest.approx(sum(v**2 for v in measured["grad_norms"].values()) ** 0.5, rel=1e-4)
    experts, layers = run.model.config.num_experts, 3
    assert {name: (len(x), len(x[0])) for name, x in measured["load_by_modality"].items()} == {
        "dots": (layers, experts),
        "ids": (layers, experts),
    }


def test_page_of_an_empty_log_says_so_and_names_are_escaped(tmp_path):
    log = JsonlLog(tmp_path / "log.jsonl")
    log.append("note", 1, text="nothing")
    with pytest.raises(UsageError, match="no training step"):
        write_page(log.path, tmp_path / "page.html")
    log.append("train", 1, loss=1.0, loss_by_modality={"<b>x</b>": 2.0}, load_max=float("inf"))
    log.append("note", 1, bad_sample="<script>alert(1)</script>")
    page = write_page(log.path, tmp_path / "page.html", title="a & b").read_text()
    assert "<script>" not in page and "<b>x</b>" not in page and "a &amp; b" in page


def test_depth_weights_are_those_of_the_reads():
    """Against the definition: the mix of the sources with the recorded weights of one row is what the read gives."""
    torch.manual_seed(0)
    bank, running, update = torch.randn(1, 8), torch.randn(1, 8), torch.randn(1, 8)
    norm, gain, query = RMSNorm(8, 1e-6), RMSNorm(8, 1e-6), Query(8)
    with torch.no_grad():
        query.weight.normal_()
        gain.weight.uniform_(0.5, 2)
    residual = Residual((bank,), running, update)
    with recorded_depth() as weights, torch.no_grad():
        residual.read(norm, (gain, query))
    sources = torch.stack([bank, running + update])
    mix = attnres_reference(sources, query.weight[0], gain.weight, eps=1e-6)
    assert len(weights) == 1 and sum(weights[0]) == pytest.approx(1)
    torch.testing.assert_close(weights[0][0] * sources[0] + weights[0][1] * sources[1], mix)
    with torch.no_grad():
        residual.read(norm, (gain, query))
    assert len(weights) == 1  # nothing is recorded outside


def test_depth_weights_of_a_fresh_model_are_even():
    model = micro_model()
    stream = Echo().sample(3, np.random.default_rng(0))
    with recorded_depth() as weights:
        model.loss(pack([stream], ("dots", "ids")))
    # two reads a layer but the very first, and the output
    assert len(weights) == 2 * model.config.num_hidden_layers
    assert all(max(read) - min(read) < 1e-6 for read in weights)
