"""The two sides of `watersmeet bench model` under one interface, and the memory that a prefill needs."""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.metadata
import os
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from watersmeet.cli.bench_peers import without_working_folder

PEER = "transformers.models.kimi_linear.modeling_kimi_linear"


def peer_version() -> str | None:
    """Version of transformers if it has the architecture, else None."""
    try:
        _peer_class()
    except (ImportError, AttributeError):
        return None
    return importlib.metadata.version("transformers")


def _peer_class() -> Any:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with without_working_folder():
        return importlib.import_module(PEER).KimiLinearForCausalLM


class Side(Protocol):
    """One implementation with its model loaded."""

    def start(self, ids_n: Tensor) -> Tensor:
        """Read a prompt into a new cache; float32 logits [V] of what follows."""
        ...

    def token(self, id_: Tensor) -> Tensor:
        """Read one more id; float32 logits [V]."""
        ...


class Ours:
    """This package."""

    def __init__(self, directory: Path, dtype: str) -> None:
        from watersmeet.core.stream import Span, Stream, content_key, pack
        from watersmeet.pipelines.models.local import load_local

        self.model = load_local(str(directory), dtype=getattr(torch, dtype)).model.eval()
        self._stack = ExitStack()
        self._stack.enter_context(self.model.fused())
        modality = self.model.config.output_modality

        def packed(ids: Tensor) -> Any:
            span = Span(modality=modality, data=ids, key=content_key(modality, ids))
            return pack([Stream(spans=(span,))], self.model.modality_names)

        self._packed, self._cache = packed, self.model.new_cache(1)
        self.vocab = self.model.config.vocab_size
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.active_bytes = _active(self.model) * getattr(torch, dtype).itemsize

    @torch.inference_mode()
    def start(self, ids_n: Tensor) -> Tensor:
        self._cache = self.model.new_cache(1)
        return self.model.logits(self.model.prefill(self._cache, self._packed(ids_n)))[0]

    @torch.inference_mode()
    def token(self, id_: Tensor) -> Tensor:
        return self.model.logits(self.model.step(self.model.embed_ids(id_[None]), self._cache))[0]


def _active(model: Any) -> int:
    """Weights that one token is multiplied with: all of the trunk but the experts that are not picked, and the head."""
    total = model.lm_head.weight.numel() + sum(p.numel() for p in model.layers.parameters())
    for layer in model.layers:
        experts = getattr(getattr(layer, "block_sparse_moe", None), "experts", None)
        if experts is not None:
            config = model.config
            share = 1 - config.num_experts_per_token / config.num_experts
            total -= round(sum(p.numel() for p in experts.parameters()) * share)
    return total


class Peer:
    """transformers, from the same files."""

    def __init__(self, directory: Path, dtype: str) -> None:
        form = _peer_class()
        with without_working_folder(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = form.from_pretrained(directory, dtype=getattr(torch, dtype), local_files_only=True).eval()
        self._cache: Any = None

    @torch.inference_mode()
    def _run(self, ids: Tensor, **options: Any) -> Tensor:
        with without_working_folder():
            out = self.model(ids[None], use_cache=True, logits_to_keep=1, **options)
        self._cache = out.cache
        logits: Tensor = out.logits[0, -1].float()
        return logits

    def start(self, ids_n: Tensor) -> Tensor:
        return self._run(ids_n)

    def token(self, id_: Tensor) -> Tensor:
        return self._run(id_[None], cache=self._cache)


def print_peak(directory: str, dtype: str, side: str, tokens: str, threads: str) -> None:
    """Print how many bytes the prefill needs at its peak beyond the loaded model. Linux only."""
    torch.set_num_threads(int(threads))
    form: Side = (Ours if side == "ours" else Peer)(Path(directory), dtype)
    ids = torch.randint(3, 1000, (int(tokens),), generator=torch.Generator().manual_seed(1))
    # every page of the weights is touched, and what is made once is made, before counting begins
    model: Any = form.model  # type: ignore[attr-defined]
    with torch.inference_mode():
        for parameter in model.parameters():
            parameter.sum()
    form.start(ids[:80])
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    form.start(ids)
    print(_status("VmHWM") - before)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
