"""Numbers to tokens to vectors."""

import io
from dataclasses import asdict, dataclass, field

import numpy as np
import torch

from watersmeet import DecodeError, Span, VectorEmbedder, content_key, read_settings, read_source

VERSION = 1  # of the tokens


@dataclass(frozen=True, kw_only=True)
class Settings:
    patch: int = field(default=8, metadata={"least": 1})  # samples of a token
    max_samples: int = field(default=4096, metadata={"least": 1})


def read(raw):
    """Numbers of a NumPy file, or of the last column of a CSV file, whose first line may be a headline."""
    if raw.startswith(b"\x93NUMPY"):
        return np.load(io.BytesIO(raw), allow_pickle=False)
    column = np.genfromtxt(io.BytesIO(raw), delimiter=",", usecols=-1, comments=None, encoding="utf-8", ndmin=1)
    return column[1:] if np.isnan(column[:1]).any() else column


class Encoder:  # gives [n, patch + 2] float32: samples with mean 0 and deviation 1, and the logarithms of both
    def __init__(self, settings=None):
        self.settings, self.files = asdict(read_settings(Settings, settings, "timeseries")), {}
        self.max_tokens = -(-self.settings["max_samples"] // self.settings["patch"])

    def encode(self, item):
        patch, most = self.settings["patch"], self.settings["max_samples"]
        try:
            is_file = isinstance(item, (str, bytes)) or hasattr(item, "__fspath__")
            values = np.asarray(read(read_source(item, "series", max_bytes=10**7)[0]) if is_file else item, np.float64)
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise DecodeError(f"not a series of numbers: {' '.join(str(error).split())[:200]}") from error
        if values.ndim != 1 or not 1 <= len(values) <= most or not (abs(values) < 1e38).all():
            raise DecodeError(f"series of shape {values.shape}, expected 1 to {most} numbers without gaps")
        n, mean, deviation = -(-len(values) // patch), values.mean(), values.std() or 1.0
        samples = np.pad((values - mean) / deviation, (0, n * patch - len(values)), mode="edge").reshape(n, patch)
        data = torch.from_numpy(np.concatenate([samples, np.tile(np.arcsinh([mean, deviation]) / 10, (n, 1))], axis=1))
        key = content_key("timeseries", VERSION, self.settings, values)
        return [Span(modality="timeseries", data=data.float(), coords=torch.arange(n)[:, None], key=key)]


class Embedder(VectorEmbedder):
    def __init__(self, hidden_size, settings):
        super().__init__(hidden_size, features=settings["patch"] + 2, coords=1)
