"""The log-mel spectrogram, frame by frame. Shapes: n frames, w samples of a window, m bands."""

from __future__ import annotations

import numpy as np


def mel_bands(rate: int, window: int, bands: int) -> np.ndarray:
    """[w // 2 + 1, m] float64: triangles whose corners stand evenly on the mel scale from 0 to half the rate.

    O'Shaughnessy's formula, mel = 2595 log10(1 + f / 700 Hz), and unit height, as in HTK.
    """
    top = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    hertz = np.linspace(0, rate / 2, window // 2 + 1)[:, None]
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    return np.maximum(0, np.minimum((hertz - left) / (middle - left), (right - hertz) / (right - middle)))


def log_mel(frames_nw: np.ndarray, bands_fm: np.ndarray) -> np.ndarray:
    """[n, m] float64, about -1 (silence) to 1: log10 of the power under a periodic Hann window in every band, from -8 to 2, scaled."""
    width = frames_nw.shape[1]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(width) / width)
    power = np.abs(np.fft.rfft(frames_nw * hann, axis=1)) ** 2
    # row by row, so that a frame's bits do not depend on how many others stand beside it
    mel = np.stack([row @ bands_fm for row in power]) if len(power) else np.zeros((0, bands_fm.shape[1]))
    return np.log10(np.maximum(mel / width, 1e-8)).clip(-8, 2) / 5 + 0.6
