"""Checkpoints of a training run: a directory a step, written beside and renamed, checked by hash when read.

    step-00001200/
        model.safetensors       float32 masters and persistent buffers (router biases among them)
        optimizer.safetensors   momenta, float32
        rng.safetensors         generator states as integers
        state.json              step, data cursor, counters, configuration
        manifest.json           name -> {bytes, sha256} of the files above; written last

A directory under its final name is complete: it was written and synced under another name first. So a process killed
at any moment leaves the last finished checkpoint as it was. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from watersmeet.core.errors import CheckpointError

FORMAT = 1
_STEP_NAME = re.compile(r"step-(\d{8,})")
# a finished checkpoint that is being replaced; until the new one has its name, this is the one of its step
_OLD_NAME = re.compile(r"\.old-step-(\d{8,})\.\d+\.tmp")


def _write_file(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checkpoint_steps(root: Path) -> dict[int, Path]:
    """Finished checkpoints under `root` by step, rising."""
    if not Path(root).is_dir():
        return {}
    entries = list(Path(root).iterdir())
    found = {int(match[1]): path for path in entries if (match := _OLD_NAME.fullmatch(path.name))}
    found |= {int(match[1]): path for path in entries if (match := _STEP_NAME.fullmatch(path.name))}
    return dict(sorted(found.items()))


def latest_checkpoint(root: Path) -> Path | None:
    """The finished checkpoint of the highest step, or None."""
    return next(reversed(checkpoint_steps(root).values()), None)


def save_state(root: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], values: Mapping[str, Any]) -> Path:
    """Write checkpoint `step` under `root` and return its directory.

    `tensors` maps a file stem to its tensors; `values` are JSON values for state.json. Raises CheckpointError when the
    disk does not take it; what was there before is then still there.
    """
    root = Path(root)
    final, beside = root / f"step-{step:08d}", root / f".step-{step:08d}.{os.getpid()}.tmp"
    try:
        root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        manifest = {}
        contents = {f"{stem}.safetensors": _tensor_bytes(group) for stem, group in tensors.items()}
        contents["state.json"] = json.dumps({"format": FORMAT, "step": step, **values}, indent=1).encode()
        for name, data in contents.items():
            _write_file(beside / name, data)
            manifest[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        _write_file(beside / "manifest.json", json.dumps(manifest, indent=1).encode())
        _sync_directory(beside)
        if final.exists():  # the same step again after a resume; replaced only now that the new one is whole
            old = root / f".old-step-{step:08d}.{os.getpid()}.tmp"
            os.rename(final, old)
            os.rename(beside, final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(beside, final)
        _sync_directory(root)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise CheckpointError(f"checkpoint {final} could not be written: {error.strerror or error}") from error
    return final


def _tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return save({name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()})


def load_state(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Tensors by file stem and the values of state.json. Raises CheckpointError naming the file that is damaged."""
    path = Path(path)
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path}: manifest.json is missing or unreadable ({error})") from None
    tensors: dict[str, dict[str, Tensor]] = {}
    values: dict[str, Any] = {}
    for name, expected in manifest.items():
        try:
            data = (path / name).read_bytes()
        except OSError:
            raise CheckpointError(f"checkpoint {path}: {name} is listed in manifest.json but missing") from None
        found = hashlib.sha256(data).hexdigest()
        if found != expected["sha256"]:
            raise CheckpointError(
                f"checkpoint {path}: {name} is damaged: sha256 {found[:12]}..., manifest says "
                f"{expected['sha256'][:12]}...; delete this directory to resume from the one before"
            )
        try:
            if name.endswith(".safetensors"):
                tensors[name.removesuffix(".safetensors")] = load(data)
            else:
                values = json.loads(data)
        except (SafetensorError, ValueError) as error:
            raise CheckpointError(f"checkpoint {path}: {name} does not parse: {error}") from None
    if values.get("format") != FORMAT:
        raise CheckpointError(f"checkpoint {path}: format is {values.get('format')}, this version reads {FORMAT}")
    return tensors, values


def clean(root: Path, keep: int, keep_every: int = 0, spared: Collection[int] = ()) -> None:
    """Delete all but the last `keep` checkpoints and unfinished remains; multiples of `keep_every` and steps in `spared` stay."""
    finished = checkpoint_steps(root)
    for step in list(finished)[: max(len(finished) - keep, 0)]:
        if step not in spared and not (keep_every and step % keep_every == 0):
            # renamed first: a death while files go must not leave half a checkpoint under the name of a whole one
            gone = finished[step].with_name(f".gone-{step:08d}.{os.getpid()}.tmp")
            try:
                os.rename(finished[step], gone)
            except OSError:
                continue
    if Path(root).is_dir():
        for path in Path(root).glob(".*.tmp"):
            if path not in finished.values():
                shutil.rmtree(path, ignore_errors=True)


def copy_into(targets: Mapping[str, Tensor], source: Mapping[str, Tensor], what: str) -> None:
    """Copy tensors by name, in place. Raises CheckpointError for missing, surplus or differently shaped ones."""
    if missing := sorted(set(targets) - set(source)):
        raise CheckpointError(
            f"{what}: tensor {missing[0]!r} is missing ({len(missing)} in all); was the model changed?"
        )
    if surplus := sorted(set(source) - set(targets)):
        raise CheckpointError(f"{what}: tensor {surplus[0]!r} is not part of this model ({len(surplus)} in all)")
    for name, target in targets.items():
        given = source[name]
        if given.shape != target.shape or given.dtype != target.dtype:
            raise CheckpointError(
                f"{what}: tensor {name!r} is {given.dtype} {tuple(given.shape)}, "
                f"expected {target.dtype} {tuple(target.shape)}"
            )
        with torch.no_grad():
            target.copy_(given)


def rng_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State of the global generators of torch (CPU and CUDA), numpy and Python, as tensors and JSON values."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    tensors = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
    }
    if torch.cuda.is_available():
        tensors |= {f"cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    values = {
        "python": {"version": version, "gauss": gauss},
        "numpy": {"kind": kind, "position": int(position), "has_gauss": int(has_gauss), "cached": float(cached)},
    }
    return tensors, values


def set_rng_state(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Restore what `rng_state` gave. Raises CheckpointError when a part is missing."""
    try:
        torch.set_rng_state(tensors["torch"])
        python, numpy = values["python"], values["numpy"]
        random.setstate((python["version"], tuple(tensors["python"].tolist()), python["gauss"]))
        keys = tensors["numpy"].numpy().astype(np.uint32)
        np.random.set_state((numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))
    except KeyError as error:
        raise CheckpointError(f"generator state {error} is missing from the checkpoint") from None
    if torch.cuda.is_available() and "cuda.0" in tensors:
        torch.cuda.set_rng_state_all([tensors[f"cuda.{index}"] for index in range(torch.cuda.device_count())])
