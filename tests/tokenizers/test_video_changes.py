"""Which patches of a video become tokens, tried on drawn frames whose changes are known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.core.stream import Stream, pack
from watersmeet.plugins.parts import StreamingEncoder
from watersmeet.tokenizers.video.compare import TILE, Comparison, Picture, tile_sums
from watersmeet.tokenizers.video.embedder import Embedder
from watersmeet.tokenizers.video.encoder import Encoder
from watersmeet.tokenizers.video.frames import Frame

FULL = {"scale": 1.0}
RATE = 30


def page(size=(128, 96)):
    """A pale page with some lines that look like text."""
    pixels = np.full((size[1], size[0], 3), 245, np.uint8)
    pixels[10:80:12, 8 : size[0] - 8 : 3] = 40
    return pixels


def run(draw, seconds, encoder=None, rate=RATE, size=(128, 96), keys=()):
    """Spans of frames made by `draw(pixels, seconds)`, and the session."""
    session, spans = (encoder or Encoder(FULL)).open(), []
    for i in range(round(seconds * rate)):
        pixels = page(size)
        draw(pixels, i / rate)
        spans += session.push(Frame(pixels=pixels, index=i, time_us=round(i * 1e6 / rate), key=i in keys))
    spans += session.close(round(seconds * 1e6))
    return spans, session


def shown(spans, size=(128, 96), until=None):
    """What somebody who sees the tokens alone believes the screen shows, after `until` seconds; scale 1, patch 32."""
    screen = np.zeros((size[1], size[0], 3), np.uint8)
    for span in spans:
        for data, source, time in zip(span.data, span.source, span.time_us.tolist(), strict=True):
            if until is None or time <= until * 1e6:
                left, top, right, bottom = source[:4]
                screen[top:bottom, left:right] = data.reshape(32, 32, 3)[: bottom - top, : right - left]
    return screen


def count(spans, after=-1.0):
    return sum(span.n for span in spans if span.time_us[0] > after * 1e6)


def test_a_still_screen_costs_one_picture(film):
    spans, _ = run(lambda pixels, t: None, 20)
    assert [span.n for span in spans] == [12] and spans[0].time_us.tolist() == [0] * 12
    assert np.array_equal(shown(spans), page())
    assert spans[0].coords.tolist() == [[r, c] for r in range(3) for c in range(4)]
    assert spans[0].source[5] == (32, 32, 64, 64, 0, 0) and spans[0].data.dtype == torch.uint8


@pytest.mark.parametrize("rate", [10, 30, 60])
@pytest.mark.parametrize("fade", [0.0, 0.08, 0.15])
@pytest.mark.parametrize("begins", [1.0, 1.017, 1.03])
def test_a_menu_of_300_ms_is_never_lost(rate, fade, begins):
    """It may come and go at once or fade all of its time; then it is given as it is when it is clearest."""
    drawn = []

    def draw(pixels, t):
        age, left = t - begins, begins + 0.3 - t
        if age >= 0 and left > 0:
            opacity = 1.0 if not fade else min(1.0, (age + 1 / rate) / fade, left / fade)
            box = pixels[32:96, 32:96].astype(float)
            pixels[32:96, 32:96] = (box * (1 - opacity) + 90 * opacity).astype(np.uint8)
        drawn.append(pixels.copy())

    spans, _ = run(draw, 3, rate=rate)
    clearest = min(drawn, key=lambda pixels: pixels.mean()).astype(int)
    seen = [shown(spans, until=int(span.time_us[0]) / 1e6) for span in spans]
    assert min(np.abs(pixels - clearest).max() for pixels in seen) <= 30
    assert np.array_equal(shown(spans), page())
    assert count(spans, after=0) <= 4 * 4  # at ten frames a second each step of a fade stands still


def test_times_and_frames_are_those_at_which_the_change_began():
    def draw(pixels, t):
        if t >= 2.2:
            pixels[40:50, 70:90] = (200, 30, 30)

    spans, _ = run(draw, 5)
    (change,) = spans[1:]
    assert change.time_us.tolist() == [2_200_000] and change.coords.tolist() == [[1, 2]]
    assert change.source == ((64, 32, 96, 64, 2_200_000, 66),)


def test_a_recorder_that_writes_no_frame_while_nothing_changes_gives_the_same():
    session, spans, dark = Encoder(FULL).open(), [], page()
    dark[40:60, 40:60] = 0
    for pixels, time in ((page(), 0), (dark, 5_000_000), (page(), 5_300_000), (dark, 70_000_000)):
        spans += session.push((pixels, time))
    spans += session.close(71_000_000)
    assert [(span.n, int(span.time_us[0])) for span in spans] == [
        (12, 0),
        (1, 5_000_000),
        (1, 5_300_000),
        (1, 70_000_000),
    ]


def test_typing_keeps_up_and_a_caret_costs_little():
    """Two minutes of a caret that blinks, after some letters."""

    def draw(pixels, t):
        letters = min(12, int((t - 1) / 0.17)) if t >= 1 else 0
        for i in range(letters):
            pixels[40:50, 40 + 5 * i : 43 + 5 * i] = 20
        if t % 1.06 < 0.53:
            pixels[38:52, 40 + 5 * letters : 42 + 5 * letters] = 0

    spans, session = run(draw, 120)
    assert count(spans, after=10) <= 14  # and not 206
    assert session.counts.repeats > 0
    at_four = shown(spans, until=4)
    assert (at_four[42, [41 + 5 * i for i in range(12)]] == 20).all()


def test_a_clock_a_spinner_and_a_film_are_bounded():
    rng = np.random.default_rng(0)
    digits = rng.integers(0, 255, (130, 12, 24, 3), dtype=np.uint8)
    noise = rng.integers(0, 255, (200, 32, 64, 3), dtype=np.uint8)

    def draw(pixels, t):
        pixels[4:16, 4:28] = digits[int(t)]  # changes every second
        angle = t * 8
        y, x = round(48 + 9 * np.sin(angle)), round(16 + 9 * np.cos(angle))
        pixels[y - 2 : y + 3, x - 2 : x + 3] = (30, 90, 220)  # never stands still
        pixels[64:96, 64:128] = noise[int(t * RATE) % 200]  # every pixel, every frame

    spans, session = run(draw, 60)
    per_patch = {place: 0 for place in [(r, c) for r in range(3) for c in range(4)]}
    for span in spans:
        for place in span.coords.tolist():
            per_patch[tuple(place)] += 1
    clock, spinner, films = per_patch[0, 0], per_patch[1, 0], (per_patch[2, 2], per_patch[2, 3])
    assert 30 <= clock <= 32 + 30 + 1
    assert 4 <= spinner <= 10 and all(4 <= n <= 10 for n in films)
    assert all(n == 1 for place, n in per_patch.items() if place not in ((0, 0), (1, 0), (2, 2), (2, 3)))
    assert count(spans) <= Encoder(FULL).most_tokens(128, 96, 60) and session.counts.given == count(spans)


@pytest.mark.parametrize("period", [1, 2, 4, 7, 11])
def test_no_video_gives_more_than_the_stated_bound(period):
    """Flicker of every kind, against patches * (burst + 1 + seconds / refill)."""
    encoder = Encoder(FULL | {"burst": 4, "refill_ms": 1000})
    rng = np.random.default_rng(period)
    pictures = rng.integers(0, 255, (7, 96, 128, 3), dtype=np.uint8)

    def draw(pixels, t):
        pixels[:] = pictures[int(t * RATE / period) % 7]

    spans, _ = run(draw, 20, encoder)
    assert count(spans) <= 12 * (4 + 1 + 20) == encoder.most_tokens(128, 96, 20)
    assert count(spans) > 12 * 4


def test_noise_of_a_codec_and_new_key_frames_cost_nothing():
    rng = np.random.default_rng(3)

    def draw(pixels, t):
        number = round(t * RATE)
        spread = 8 if number % 60 else 14
        moved = pixels.astype(int) + rng.integers(-spread, spread + 1, pixels.shape)
        if number >= 60:  # a key frame is coded anew, and a little darker
            moved -= 4
        pixels[:] = np.clip(moved, 0, 255).astype(np.uint8)
        pixels[8:24, 8:24] = np.clip(pixels[8:24, 8:24].astype(int) - 3 * (number >= 60), 0, 255)

    spans, session = run(draw, 6, keys=range(0, 180, 60))
    assert count(spans) == 12 and session.counts.noise >= 1


def test_a_pale_highlight_is_a_change():
    spans, _ = run(lambda pixels, t: pixels[64:80, 96:120].__isub__(8) if t > 1 else None, 3)
    assert [span.n for span in spans] == [12, 1]


def test_a_cursor_that_passes_by_is_not_given_and_one_that_rests_is():
    def draw(pixels, t):
        x = 4 if t < 1 else min(112, 4 + int((t - 1) * 400))
        pixels[50:60, x : x + 8] = 0

    spans, _ = run(draw, 4)
    touched = {tuple(place) for span in spans[1:] for place in span.coords.tolist()}
    assert touched == {(1, 0), (1, 3)}


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 5), st.booleans()), min_size=1, max_size=60))
@settings(max_examples=30)
def test_the_end_is_always_true_and_times_rise(steps):
    """After any flicker with any pauses, the tokens give the last picture, in order of time, within the bound."""
    pictures = [page((64, 32)) for _ in range(6)]
    for i, picture in enumerate(pictures):
        picture[8:20, 8 + 8 * i : 20 + 8 * i] = 20 * i
    encoder = Encoder(FULL | {"burst": 3, "refill_ms": 5000})
    session, spans, time = encoder.open(), [], 0
    for wait, which, key in steps:
        spans += session.push(Frame(pixels=pictures[which], index=0, time_us=time, key=key))
        time += wait * 1000
    spans += session.close(time)
    assert np.array_equal(shown(spans, (64, 32)), pictures[steps[-1][1]])
    stamps = [int(span.time_us[0]) for span in spans]
    assert stamps == sorted(set(stamps)) and all(span.time_us.unique().numel() == 1 for span in spans)
    assert count(spans) <= encoder.most_tokens(64, 32, time / 1e6)
    assert session.counts.given == count(spans)


def test_a_whole_file_is_what_its_frames_give(tmp_path, film):
    from watersmeet.tokenizers.video.process import Video

    frames = [page() for _ in range(40)]
    for pixels in frames[20:]:
        pixels[40:60, 40:60] = (200, 30, 30)
    path = film(tmp_path / "a.mp4", frames)
    encoder = Encoder(FULL)
    whole = encoder.encode(path)
    session, pieces = encoder.open(), []
    with Video(path) as video:
        for frame in video.frames():
            pieces += session.push(frame)
        pieces += session.close(video.end_us)
    assert [span.key for span in whole] == [span.key for span in pieces] and len(whole) >= 2
    assert [span.key for span in encoder.encode(path.read_bytes())] == [span.key for span in whole]
    assert [span.source for span in whole] == [span.source for span in pieces]
    assert Encoder(FULL | {"settle_ms": 90}).encode(path)[0].key != whole[0].key
    assert Encoder(encoder.settings).encode(path)[0].key == whole[0].key
    assert int(whole[1].time_us[0]) == 666_667


def test_frames_that_come_smaller_give_the_patches_and_boxes_of_the_whole_size():
    encoder = Encoder(FULL | {"scale": 0.25})
    # cells of four pixels, so that halving twice is quartering
    cells = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    frames = [cells.repeat(4, axis=0).repeat(4, axis=1) for _ in range(30)]
    for pixels in frames[10:]:
        pixels[64:128, 64:192] = (200, 30, 30)

    def spans_of(session, pictures):
        spans = [span for i, pixels in enumerate(pictures) for span in session.push((pixels, i * 40_000))]
        return spans + session.close(1_200_000)

    whole = spans_of(encoder.open(), frames)
    halves = [pixels.reshape(96, 2, 128, 2, 3).mean((1, 3)).round().astype(np.uint8) for pixels in frames]
    smaller = spans_of(encoder.open((256, 192)), halves)
    assert len(whole) >= 2 and [span.key for span in smaller] == [span.key for span in whole]
    assert [span.source for span in smaller] == [span.source for span in whole]


def test_a_frame_whose_memory_is_written_to_meanwhile_is_compared_as_it_came():
    """The ring of a decoder holds a later frame when the same picture comes again."""
    first, other = page((64, 64)), page((64, 64))
    other[8:40, 8:40] = (200, 30, 30)
    shown_anew = [first, other, other, other, other, other]
    session, spans = Encoder(FULL).open(), []
    for i, pixels in enumerate(shown_anew):
        memory = pixels.copy()
        spans += session.push((memory, i * 200_000))
        memory[:] = 0
    spans += session.close(1_200_000)
    expected, plain = Encoder(FULL).open(), []
    for i, pixels in enumerate(shown_anew):
        plain += expected.push((pixels.copy(), i * 200_000))
    plain += expected.close(1_200_000)
    assert [span.key for span in spans] == [span.key for span in plain]
    assert np.array_equal(shown(spans, (64, 64)), other)


def test_tile_sums_and_differences_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, (64, 96, 3), dtype=np.uint8) for _ in range(2))
    b[:32, :64] = np.clip(a[:32, :64].astype(int) + rng.integers(-3, 4, (32, 64, 3)), 0, 255)
    b[3, 40:42, 1] = np.where(a[3, 40:42, 1] > 127, 0, 255)  # two pixels of one tile
    compare = Comparison(step=32, few=2, mean=5, patch=32)
    expected = np.zeros((2, 3), dtype=bool)
    for row in range(0, 64, TILE):
        for column in range(0, 96, TILE):
            one, two = (x[row : row + TILE, column : column + TILE].astype(int) for x in (a, b))
            assert np.array_equal(tile_sums(a)[row // TILE, column // TILE], one.sum((0, 1)))
            few = (np.abs(one - two) > 32).sum((0, 1)).max() >= 2
            mean = np.abs(one.mean((0, 1)) - two.mean((0, 1))).max() > 5
            expected[row // 32, column // 32] |= few or mean
    assert np.array_equal(compare.differing(Picture.of(a), Picture.of(b)), expected)
    assert expected[0].tolist() == [False, True, True]


def test_wrong_frames_and_settings_are_explained():
    session = Encoder(FULL).open()
    assert isinstance(Encoder(FULL), StreamingEncoder) and session.counts is None
    session.push((page(), 1000))
    for pixels, time, says in (
        (page(), 1000, "times have to rise"),
        (page((64, 64)), 2000, "64 x 64 but the first one"),
        (page().astype(float), 3000, "expected uint8"),
    ):
        with pytest.raises(DecodeError, match=says):
            session.push((pixels, time))
    assert count(session.close()) == 12 and session.close() == []
    with pytest.raises(DecodeError, match="was closed; open another one"):
        session.push((page(), 9000))
    small = Encoder(FULL | {"max_tokens": 11}).open()
    small.push((page(), 0))
    with pytest.raises(DecodeError, match="more than 11 tokens by 0.0 s"):
        small.close(1_000_000)
    for wrong, says in (({"patch": 20}, "multiple of 8"), ({"burst": 1}, "at least 2"), ({"pach": 1}, "unknown name 'pach'"),
                        ({"scale": 9}, "at most 4"), ({"settle_ms": 0.5}, "settle_ms is 0.5")):  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            Encoder(wrong)


def test_the_embedder_is_that_of_pictures_plus_a_map_of_the_time():
    torch.manual_seed(0)
    net = Embedder(24, {"patch": 32, "waves": 5}).double()
    spans, _ = run(lambda pixels, t: pixels[40:50, 40:50].__isub__(99) if t > 1 else None, 3)
    packed = pack([Stream(spans=tuple(spans))])
    (segment,) = packed.segments
    found = net(segment.data, segment.coords, segment.time_us)
    assert found.shape == (13, 24)
    picture = super(Embedder, net).forward(segment.data, segment.coords)
    seconds = segment.time_us[-1].item() / 1e6
    periods = 0.1 * 864_000.0 ** (np.arange(5) / 4)
    waves = np.concatenate([np.sin(2 * np.pi * seconds / periods), np.cos(2 * np.pi * seconds / periods)])
    expected = picture[-1] + net.time.weight @ torch.from_numpy(waves)
    assert torch.allclose(found[-1], expected, atol=1e-12)
    nothing = net(segment.data[:0], segment.coords[:0], segment.time_us[:0])
    nothing.sum().backward()
    assert nothing.shape == (0, 24) and all(p.grad is not None and not p.grad.any() for p in net.parameters())
    names = {name for name, _ in net.named_parameters()}
    assert names - {"time.weight"} == {"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "norm.weight", "norm.bias", "project.weight", "row", "column"}  # fmt: skip


@pytest.mark.parametrize("keys", [range(0, 300), range(0, 300, 5)])
def test_what_changes_slowly_is_given_in_the_end_whatever_frames_are_coded_by_themselves(keys):
    """Each step alone would pass for noise of a key frame."""

    def draw(pixels, t):
        pixels[32:64, 32:64] = 245 - int(t * 20)

    spans, _ = run(draw, 10, keys=keys)
    last = shown(spans)[32:64, 32:64].astype(int)
    assert np.abs(last - (245 - 199)).max() <= 15
    assert count(spans, after=0) >= 8
