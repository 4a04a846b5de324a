"""The peers that benchmarks measure against, where they are installed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TRANSFORMERS = "transformers.models.kimi_linear.modeling_kimi_linear"


@contextlib.contextmanager
def without_working_folder() -> Iterator[None]:
    """In a checkout the folders `kernels` and `tokenizers` would hide packages of those names from other libraries."""
    here = Path.cwd().resolve()
    before = list(sys.path)
    sys.path[:] = [entry for entry in before if entry and Path(entry).resolve() != here]
    try:
        yield
    finally:
        sys.path[:] = before


def transformers_module() -> Any | None:
    """transformers' kimi_linear, or None where transformers is missing or too old."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        with without_working_folder():
            return importlib.import_module(TRANSFORMERS)
    except ImportError:
        return None


def peer_function() -> Callable[..., Any] | None:
    """The chunked fallback of transformers' kimi_linear, or None.

    Where flash-linear-attention is installed, transformers hides the fallback behind that package's GPU kernels.
    """
    function = getattr(transformers_module(), "chunk_kimi_delta_attention", None)
    return None if function is None else inspect.unwrap(function)


def fla_function() -> Callable[..., Any] | None:
    """`naive_chunk_kda` of flash-linear-attention, or None; only its own file is run, for the package wants a GPU."""
    found = importlib.util.find_spec("fla")
    for folder in (found.submodule_search_locations or ()) if found else ():
        file = Path(folder) / "ops" / "kda" / "naive.py"
        if file.is_file():
            spec = importlib.util.spec_from_file_location("_fla_naive_kda", file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except ImportError:
                return None
            return getattr(module, "naive_chunk_kda", None)
    return None


def version(*packages: str) -> str | None:
    """Version of the first of these that is installed."""
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return None
