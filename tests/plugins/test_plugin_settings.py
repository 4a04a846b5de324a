import dataclasses

import pytest
import torch
from torch.autograd import grad

from watersmeet.core.errors import ConfigError, DecodeError, UsageError
from watersmeet.plugins.settings import read_settings
from watersmeet.plugins.sources import read_source
from watersmeet.plugins.vectors import VectorEmbedder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    patch: int = dataclasses.field(default=8, metadata={"least": 1, "most": 64})
    rate: float = 0.5
    label: str | None = None
    sides: tuple[int, ...] = (1, 2)
    pair: tuple[float, str] = (1.0, "a")
    loud: bool = False

    def __post_init__(self):
        if self.rate < 0:
            raise ValueError(f"rate is {self.rate}, expected no negative number")


def test_defaults_are_filled_in_and_plain_values_fit():
    assert read_settings(Example, None, "x") == Example()
    found = read_settings(Example, {"rate": 2, "sides": [3], "pair": [4, "b"], "label": "l", "files": {"a": b""}}, "x")
    assert found == Example(rate=2.0, sides=(3,), pair=(4.0, "b"), label="l")
    assert type(found.rate) is float and type(found.sides) is tuple


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"pach": 4}, "x has no setting 'pach'; did you mean 'patch'?"),
        ({"zzz": 4}, "x has no setting 'zzz'; there are: patch, rate, label, sides, pair, loud"),
        ({"patch": "4"}, "x: setting patch is '4', expected a whole number"),
        ({"patch": True}, "x: setting patch is True, expected a whole number"),
        ({"patch": 0}, "x: setting patch is 0, expected at least 1 and at most 64"),
        ({"patch": 65}, "x: setting patch is 65, expected at least 1 and at most 64"),
        ({"rate": float("nan")}, "x: setting rate is nan, expected a number"),
        ({"rate": -1}, "x: rate is -1.0, expected no negative number"),
        ({"label": 3}, "x: setting label is 3, expected a text or null"),
        ({"sides": [1, "b"]}, "x: setting sides is [1, 'b'], expected a list of a whole number"),
        ({"pair": [1.0]}, "x: setting pair is [1.0], expected a list of 2 times a number"),
        ({"loud": 1}, "x: setting loud is 1, expected true or false"),
    ],
)
def test_a_wrong_setting_is_one_sentence(values, sentence):
    with pytest.raises(ConfigError) as caught:
        read_settings(Example, values, "x")
    assert str(caught.value) == sentence


def test_a_missing_setting_and_another_class_of_error():
    needed = dataclasses.make_dataclass("Needed", [("width", int)], frozen=True)
    with pytest.raises(UsageError, match="x: setting width is missing, expected a whole number"):
        read_settings(needed, {}, "x", error=UsageError)


def test_bytes_of_paths_and_bytes_within_limits(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"1,2\n")
    assert (
        read_source(path, "series") == (b"1,2\n", str(path)) and read_source(b"1", "series")[1] == "series of 1 bytes"
    )
    (tmp_path / "none").write_bytes(b"")
    wrong = {
        tmp_path: "is a folder, expected CSV",
        tmp_path / "gone": "No such file",
        tmp_path / "none": r"file is empty \(0 bytes\), expected CSV",
        path: "file has 4 bytes, more than the limit of 3",
        b"12345": "5 bytes are more than the limit of 3",
        "a\0b": "is no path",
    }
    for source, sentence in wrong.items():
        with pytest.raises(DecodeError, match=sentence):
            read_source(source, "series", expected="CSV", max_bytes=3)


@pytest.mark.parametrize(("coords", "timed"), [(0, False), (2, False), (1, True), (0, True)])
def test_the_ready_made_embedder_keeps_the_contract(coords, timed):
    torch.manual_seed(0)
    made = VectorEmbedder(24, features=5, coords=coords, timed=timed).double()
    data, place = torch.randn(300, 5), torch.randint(0, 4000, (300, coords))
    time_us = torch.arange(300) * 20_000 if timed else None
    out = made(data, place, time_us)
    assert out.shape == (300, 24) and out.dtype == torch.float64 and 0.01 < float(out.detach().std()) < 0.04
    alone = torch.cat(
        [
            made(data[i : i + 1], place[i : i + 1], time_us if time_us is None else time_us[i : i + 1])
            for i in range(300)
        ]
    )
    torch.testing.assert_close(out, alone, rtol=0, atol=1e-12)
    # where a token stands, and when, is told apart one step from the next
    for column in range(coords):
        moved = place.clone()
        moved[:, column] += 1
        assert (made(data, moved, time_us) - out).abs().amax(1).min() > 1e-5
    if timed:
        assert (made(data, place, time_us + 10_000) - out).abs().amax(1).min() > 1e-5
        with pytest.raises(ValueError, match="time_us"):
            made(data, place)
    nothing = made(data[:0], place[:0], None if time_us is None else time_us[:0])
    assert nothing.shape == (0, 24)
    assert all(not g.any() for g in grad(nothing.sum(), list(made.parameters())))
