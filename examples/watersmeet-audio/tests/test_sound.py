"""The spectrogram against scipy and transformers, and pieces against the whole."""

import math

import numpy as np
import pytest
import torch
from watersmeet_audio.encode import Encoder
from watersmeet_audio.mel import log_mel, mel_bands

from watersmeet import DecodeError
from watersmeet.testing.samples import sound

rng = np.random.default_rng(0)


def test_the_spectrogram_is_that_of_scipy_under_the_bands_of_transformers():
    signal = pytest.importorskip("scipy.signal")
    audio = pytest.importorskip("transformers.audio_utils")
    samples, width = rng.normal(0, 0.2, 4000), 400
    _, _, power = signal.spectrogram(
        samples, window="hann", nperseg=width, noverlap=0, detrend=False, scaling="spectrum"
    )
    # one-sided and divided by the squared sum of the window
    power = power.T * (np.hanning(width + 1)[:-1].sum() ** 2)
    power[:, 1:-1] /= 2
    bands = audio.mel_filter_bank(
        num_frequency_bins=201,
        num_mel_filters=40,
        min_frequency=0,
        max_frequency=8000,
        sampling_rate=16000,
        mel_scale="htk",
    )
    np.testing.assert_allclose(mel_bands(16000, width, 40), bands, atol=1e-9)
    found = log_mel(samples.reshape(-1, width), mel_bands(16000, width, 40))
    np.testing.assert_allclose(found, np.log10(power @ bands / width).clip(-8, 2) / 5 + 0.6, atol=1e-9)


@pytest.mark.parametrize("rate", [16_000, 44_100, 8_000])
@pytest.mark.parametrize("seed", [0, 1])
def test_pieces_of_any_size_give_the_tokens_of_the_whole_to_the_bit(rate, seed):
    encoder, pieces = Encoder(), np.random.default_rng(seed)
    samples = rng.normal(0, 0.2, int(pieces.integers(1, 30_000)))
    [whole] = encoder.encode((samples, rate))
    feed, other, spans, start = encoder.open(), encoder.open(), [], 0
    while start < len(samples):
        end = start + int(pieces.integers(0, 4000))
        spans += feed.push((samples[start:end], rate))
        other.push((samples[:100], rate))  # feeds know nothing of each other
        start = end
    spans += feed.close()
    for column in ("data", "coords", "time_us", "block"):
        assert torch.equal(torch.cat([getattr(span, column) for span in spans]), getattr(whole, column)), column
    assert sum((span.source for span in spans), ()) == whole.source and feed.close() == []
    with pytest.raises(DecodeError, match="was closed"):
        feed.push((samples, rate))


def test_a_tone_is_in_its_band_at_its_time():
    silent, tone = np.zeros(8000), np.sin(2 * np.pi * 1000 * np.arange(8000) / 16000)
    [span] = Encoder({"frames": 1}).encode((np.concatenate([silent, tone]), 16_000))
    heard = (span.data.max(1).values > 0).nonzero()[:, 0]
    # windows of 25 ms reach up to 25 ms ahead of their time
    assert 470_000 <= int(span.time_us[heard[0]]) <= 500_000 and int(heard[-1]) == span.n - 1
    middles = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 42)[1:-1] / 2595) - 1)
    assert abs(middles[int(span.data[-10].argmax())] - 1000) < 120


def test_channels_and_rates_of_a_file_do_not_matter():
    plain, stereo = (Encoder().encode(sound(1.0, channels=n))[0] for n in (1, 2))
    assert torch.equal(plain.data, stereo.data)
    other = Encoder().encode(sound(1.0, 44_100))[0]
    assert other.n == plain.n and (other.data - plain.data).abs().median() < 0.05


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 96_000])
@pytest.mark.parametrize("count", [1, 9, 441, 4410])
def test_no_sample_of_a_short_sound_is_lost_in_the_resampler(count, rate):
    [span] = Encoder({"frames": 1}).encode((np.ones(count), rate))
    there = math.ceil(count * 16_000 / rate)
    assert span.n == math.ceil(there / 160)


def test_too_much_sound_and_a_changing_rate_are_refused():
    encoder = Encoder({"max_seconds": 1.0})
    assert encoder.encode(encoder.largest())[0].n == encoder.max_tokens == 25
    with pytest.raises(DecodeError, match="longer than max_seconds = 1; cut it"):
        encoder.encode((np.zeros(16_001), 16_000))
    feed = encoder.open()
    feed.push((np.zeros(100), 44_100))
    with pytest.raises(DecodeError, match="changes its rate from 44100 to 48000"):
        feed.push((np.zeros(100), 48_000))
