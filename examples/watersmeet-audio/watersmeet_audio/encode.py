"""Sound to tokens, whole or while it arrives. Shapes: n tokens, f frames a token, m bands, s samples."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import av
import numpy as np
import torch

from watersmeet import DecodeError, Span, VectorEmbedder, content_key, read_settings, read_source
from watersmeet_audio.mel import log_mel, mel_bands

VERSION = 1
WINDOW_S = 0.025
HOP_S = 0.010


@dataclass(frozen=True, kw_only=True)
class Settings:
    """rate: Hz to which sound is brought. bands: of the spectrogram. frames: of 10 ms in a token. max_seconds: of one item."""

    rate: int = field(default=16_000, metadata={"least": 4_000, "most": 48_000})
    bands: int = field(default=40, metadata={"least": 4, "most": 128})
    frames: int = field(default=4, metadata={"least": 1, "most": 100})
    max_seconds: float = field(default=60.0, metadata={"least": 0.1, "most": 3600.0})


class Encoder:
    """Encodes a file (path or bytes) of any format that FFmpeg reads, {"samples": [...], "rate": Hz}, or (samples, rate).

    Samples are [s] or [s, channels] from -1 to 1; channels are averaged. A token holds the log-mel of `frames` frames and begins
    at `time_us`; what the last token lacks is silence.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.options = read_settings(Settings, settings, "audio")
        self.settings = asdict(self.options)
        self.files: dict[str, bytes] = {}

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return round(HOP_S * self.options.rate)

    @property
    def max_tokens(self) -> int:
        """Most tokens of one item."""
        return -(-round(self.options.max_seconds * self.options.rate) // (self.hop * self.options.frames))

    def open(self) -> Feed:
        """Sound that arrives piece by piece: see `Feed`."""
        return Feed(self)

    def largest(self) -> Any:
        """An item of `max_tokens` tokens."""
        return np.zeros(round(self.options.max_seconds * self.options.rate), np.float32), self.options.rate

    def encode(self, item: Any) -> list[Span]:
        """One span: data [n, frames * bands] float32, coords [n, 1] int64 the token's number, time_us [n] its begin, source (begin,
        end) in us. Raises DecodeError for what is no sound, and for sound without a sample or of more than max_seconds."""
        feed, tokens = self.open(), []
        for samples, rate in _pieces(item):
            tokens += feed.push((samples, rate))
        tokens += feed.close()
        if not tokens:
            raise DecodeError("the sound holds no sample")
        return [self.span(torch.cat([span.data for span in tokens]), 0)]

    def span(self, data: torch.Tensor, first: int) -> Span:
        """Tokens as a span; first: the number of the first one."""
        length = round(self.hop * self.options.frames * 1_000_000 / self.options.rate)
        numbers = torch.arange(first, first + len(data))
        return Span(
            modality="audio",
            data=data,
            coords=numbers[:, None],
            time_us=numbers * length,
            key=content_key("audio", VERSION, self.settings, first, data),
            source=tuple((i * length, (i + 1) * length) for i in numbers.tolist()),
        )


class Feed:
    """Sound that is still arriving. `push` takes (samples, rate) or samples at the encoder's own rate, in pieces of any size."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        options = encoder.options
        self._window = round(WINDOW_S * options.rate)
        self._bands = mel_bands(options.rate, self._window, options.bands)
        self._limit = round(options.max_seconds * options.rate)
        self._waiting = np.zeros(0)
        # samples that came, samples at the encoder's rate, tokens
        self._arrived = self._taken = self._given = 0
        self._rate = 0
        self._resampler: av.AudioResampler | None = None
        self._closed = False

    def push(self, chunk: Any) -> list[Span]:
        """The tokens that are complete by now. Raises DecodeError for other things than sound and for too much of it."""
        samples, rate = chunk if isinstance(chunk, tuple) else (chunk, self.encoder.options.rate)
        if self._closed:
            raise DecodeError("the sound was closed; open another one")
        return self._take(self._resampled(_mono(samples), _rate(rate)))

    def close(self) -> list[Span]:
        """What was still waiting for its last samples."""
        if self._closed:
            return []
        self._closed = True
        spans = self._take(self._flushed())
        step = self.encoder.hop * self.encoder.options.frames
        missing = -(-self._taken // step) - self._given
        if not missing:
            return spans
        # silence up to the end of the last token and of its last window
        rest = np.zeros(missing * step + self._window - len(self._waiting))
        return spans + self._tokens(np.concatenate([self._waiting, rest]), missing)

    def _take(self, samples_s: np.ndarray) -> list[Span]:
        self._taken += len(samples_s)
        if self._taken > self._limit:
            raise DecodeError(f"the sound is longer than max_seconds = {self.encoder.options.max_seconds:g}; cut it")
        self._waiting = np.concatenate([self._waiting, samples_s])
        step = self.encoder.hop * self.encoder.options.frames
        ahead = self._window - self.encoder.hop  # the last window reaches beyond its token
        ready = max(0, (len(self._waiting) - ahead) // step)
        return self._tokens(self._waiting, ready) if ready else []

    def _tokens(self, samples_s: np.ndarray, count: int) -> list[Span]:
        frames, hop = self.encoder.options.frames, self.encoder.hop
        starts = np.arange(count * frames) * hop
        windows = samples_s[starts[:, None] + np.arange(self._window)]
        data = log_mel(windows, self._bands).reshape(count, -1)
        span = self.encoder.span(torch.from_numpy(data).float(), self._given)
        self._given += count
        self._waiting = samples_s[count * frames * hop :]
        return [span]

    def _resampled(self, samples_s: np.ndarray, rate: int) -> np.ndarray:
        self._rate = self._rate or rate
        if rate != self._rate:
            raise DecodeError(f"the sound changes its rate from {self._rate} to {rate} Hz; open another one for it")
        self._arrived += len(samples_s)
        if rate == self.encoder.options.rate or not len(samples_s):
            return samples_s
        if self._resampler is None:
            self._resampler = av.AudioResampler(format="dbl", layout="mono", rate=self.encoder.options.rate)
        frame = av.AudioFrame.from_ndarray(samples_s[None].astype(np.float64), format="dbl", layout="mono")
        frame.rate = rate
        return _joined(self._resampler.resample(frame))

    def _flushed(self) -> np.ndarray:
        if self._resampler is None:
            return np.zeros(0)
        # the resampler keeps as much as its filter is long, of a short sound all; silence pushes it out
        wanted = -(-self._arrived * self.encoder.options.rate // self._rate) - self._taken
        silence = av.AudioFrame.from_ndarray(np.zeros((1, self._rate)), format="dbl", layout="mono")
        silence.rate = self._rate
        return _joined(self._resampler.resample(silence))[:wanted]


class Embedder(VectorEmbedder):
    """The ready-made one."""

    def __init__(self, hidden_size: int, settings: Mapping[str, Any]) -> None:
        full = read_settings(Settings, settings, "audio")
        super().__init__(hidden_size, features=full.frames * full.bands, coords=1)


def _joined(frames: list[av.AudioFrame]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(frame.to_ndarray()[0] for frame in frames)])


def _rate(rate: Any) -> int:
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or not 1_000 <= rate <= 768_000:
        raise DecodeError(f"the rate of the sound is {rate!r}, expected 1,000 to 768,000 Hz")
    return int(rate)


def _mono(samples: Any) -> np.ndarray:
    try:
        found = np.asarray(samples, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise DecodeError(f"samples are no numbers ({error})") from error
    if found.ndim == 2 and 1 <= found.shape[1] <= 64:
        found = found.mean(1)
    if found.ndim != 1:
        raise DecodeError(f"samples of shape {found.shape}, expected [samples] or [samples, channels]")
    if not (np.abs(found) <= 1e3).all():
        raise DecodeError("samples hold NaN or values beyond 1,000, expected -1 to 1")
    return found


def _pieces(item: Any) -> Iterator[tuple[Any, Any]]:
    """(samples, rate) in pieces, as they are decoded."""
    if isinstance(item, Mapping):
        if set(item) != {"samples", "rate"}:
            raise DecodeError(f"sound with the fields {', '.join(map(repr, item))}, expected 'samples' and 'rate'")
        yield item["samples"], item["rate"]
    elif isinstance(item, tuple) and len(item) == 2:
        yield item
    elif isinstance(item, (str, bytes, bytearray)) or hasattr(item, "__fspath__"):
        yield from _decoded(*read_source(item, "sound", expected="WAV, FLAC, MP3 or Ogg"))
    else:
        raise DecodeError(f"sound is a {type(item).__name__}, expected a file, or samples with their rate")


def _decoded(raw: bytes, name: str) -> Iterator[tuple[np.ndarray, int]]:
    try:
        with av.open(io.BytesIO(raw)) as container:
            if not container.streams.audio:
                raise DecodeError(f"{name}: holds no sound")
            plain: av.AudioResampler | None = None
            for frame in container.decode(container.streams.audio[0]):
                # whatever it was stored as, to numbers from -1 to 1, channels beside each other, at its own rate
                plain = plain or av.AudioResampler(format="dblp", layout=frame.layout, rate=frame.rate)
                for part in plain.resample(frame):
                    yield part.to_ndarray().T, part.rate
    except (av.FFmpegError, ValueError) as error:
        if isinstance(error, DecodeError):
            raise
        raise DecodeError(f"{name}: is not sound that can be read ({error})") from error
