"""Processors in the style of `transformers` as encoders: called with an item, they return named arrays, of which one is tokens.

Legend of layouts: c channels, h rows, w columns, t steps in time, f features, n tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.plugins.settings import FILES

if TYPE_CHECKING:
    import numpy as np

    from watersmeet.core.stream import Span

LAYOUTS = ("c h w", "h w c", "f t", "t f", "n f")

# faults of the program, not of an item, and not to be counted as bad media
_BUGS = (ImportError, NameError, AttributeError, MemoryError, NotImplementedError)


class ProcessorEncoder:
    """An encoder around a processor. A subclass says which one, and how its array is cut into tokens:

        class Encoder(ProcessorEncoder):
            modality, array, layout = "speech", "input_features", "f t"

            def processor(self):
                return WhisperFeatureExtractor(**self.settings["processor"])

            def call(self, item):
                return self.made(item, sampling_rate=16000, return_tensors="np")

    modality    the name in the spec
    array       the name of the processor's result: pixel_values, input_features, input_values, ...
    layout      axes of one item: "c h w" and "h w c" are cut into patches of `patch` pixels a side, row by row; "f t" and "t f" give
                one token a step; "n f" are tokens already
    patch       side of a patch; 0 for layouts without pixels
    version     part of every key; raise it when equal items and settings give other tokens

    settings: {"processor": {...}}, plain values for `processor()`; whatever else a subclass puts into `defaults`. Tokens are data
    [n, numbers of a token] float32 with coords [n, 2] (row, column) or [n, 1] (step); `VectorEmbedder` reads them. What the
    processor raises about an item becomes DecodeError.
    """

    modality: str = ""
    array: str = "pixel_values"
    layout: str = "c h w"
    patch: int = 0
    version: int = 1
    defaults: Mapping[str, Any] = {"processor": {}}

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        given = {name: value for name, value in (settings or {}).items() if name != FILES}
        if unknown := sorted(set(given) - set(self.defaults)):
            raise ConfigError(f"{self.modality} has no setting {unknown[0]!r}; there are: {', '.join(self.defaults)}")
        if self.layout not in LAYOUTS or ("h" in self.layout) != (self.patch > 0):
            raise ConfigError(
                f"{self.modality}: layout {self.layout!r} with patch {self.patch}, expected one of {LAYOUTS}"
            )
        self.settings: dict[str, Any] = {**self.defaults, **given}
        self.files: dict[str, bytes] = {}
        self.made: Callable[..., Mapping[str, Any]] = self.processor()

    def processor(self) -> Callable[..., Mapping[str, Any]]:
        """The processor, made from `self.settings` alone, so that every process makes an equal one."""
        raise NotImplementedError(f"{type(self).__name__} names no processor")

    def call(self, item: Any) -> Mapping[str, Any]:
        """What the processor returns for one item, with a first axis of one."""
        return self.made(item, return_tensors="np")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.settings,)

    def encode(self, item: Any) -> list[Span]:
        """One span of the item's tokens. Raises DecodeError for an item that the processor does not take."""
        import numpy as np
        import torch

        from watersmeet.core.stream import Span, content_key

        try:
            found = np.asarray(self.call(item)[self.array], dtype=np.float32)
        except _BUGS:
            raise
        except Exception as error:  # processors raise anything about an item they do not take
            raise DecodeError(
                f"{self.modality}: the processor refused the item ({type(error).__name__}: {error})"
            ) from error
        if self.layout != "n f" or found.ndim == 3:
            if found.shape[0] != 1:
                raise DecodeError(f"{self.modality}: the processor made {len(found)} items of one")
            found = found[0]
        tokens, coords = self._tokens(found)
        if not np.isfinite(tokens).all():
            raise DecodeError(f"{self.modality}: {self.array} holds NaN or infinity")
        key = content_key(self.modality, self.version, self.settings, tokens, coords)
        data = torch.from_numpy(np.ascontiguousarray(tokens))
        return [Span(modality=self.modality, data=data, coords=torch.from_numpy(coords), key=key)]

    def _tokens(self, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        axes = self.layout.split()
        if found.ndim != len(axes):
            raise DecodeError(
                f"{self.modality}: {self.array} of one item has shape {found.shape}, expected axes {self.layout!r}"
            )
        if "h" not in axes:
            rows = found.T if axes == ["f", "t"] else found
            return rows, np.arange(len(rows))[:, None]
        pixels_hwc = found.transpose(1, 2, 0) if axes[0] == "c" else found
        (height, width, channels), p = pixels_hwc.shape, self.patch
        if height % p or width % p:
            raise DecodeError(
                f"{self.modality}: {self.array} has {height} x {width} pixels, expected multiples of the patch, {p}; change the "
                "size in the processor's settings"
            )
        grid = pixels_hwc.reshape(height // p, p, width // p, p, channels).transpose(0, 2, 1, 3, 4)
        rows, columns = np.divmod(np.arange((height // p) * (width // p)), width // p)
        return grid.reshape(len(rows), -1), np.stack([rows, columns], axis=1)
