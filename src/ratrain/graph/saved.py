"""Checkpoints of a graph's training: parameters and the optimizer's states, a file an epoch, whole
or absent. A file's name ends in the hash of its bytes."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ratrain.checkpoint.disk import told
from ratrain.errors import CannotResume
from ratrain.readers.files import read_bytes

MOST_BYTES = 1 << 36
_NAME = re.compile(r"epoch-(\d{9})-([0-9a-f]{16})\.safetensors")


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds. `about`: of which graph, network and training it is."""

    epoch: int
    tensors: dict[str, torch.Tensor]
    about: str


def state_of(
    parameters: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """Parameters and the optimizer's states, by name."""
    tensors = {f"parameter.{name}": value.detach() for name, value in parameters.items()}
    for name, parameter in parameters.items():
        state: dict[str, Any] = optimizer.state.get(parameter, {})
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer.{name}.{key}"] = value.detach()
    return tensors


def restore(
    tensors: dict[str, torch.Tensor],
    parameters: dict[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Puts them back."""
    for name, parameter in parameters.items():
        with torch.no_grad():
            parameter.copy_(tensors[f"parameter.{name}"])
        start = f"optimizer.{name}."
        state = {
            key[len(start) :]: v.clone() for key, v in tensors.items() if key.startswith(start)
        }
        if state:
            optimizer.state[parameter] = state


def save(folder: Path, saved: Saved, keep: int) -> Path:
    """Writes one, waits until the disk has it, and removes old ones."""
    from safetensors.torch import save as as_bytes

    data = as_bytes(
        {name: value.contiguous() for name, value in saved.tensors.items()},
        {"epoch": str(saved.epoch), "about": saved.about},
    )
    digest = hashlib.sha256(data).hexdigest()[:16]
    path = folder / f"epoch-{saved.epoch:09}-{digest}.safetensors"
    partial = folder / "partial"
    with told(folder, "saving"):
        folder.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        for old in [p for p in listed(folder) if p != path][keep - 1 :]:
            old.unlink(missing_ok=True)
    return path


def listed(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the latest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)


def latest(folder: Path, about: str) -> Saved | None:
    """The latest whole checkpoint; None where there is none. One of another graph or network is an
    error, and so is a folder of which all are damaged."""
    from safetensors.torch import load

    found = listed(folder)
    for path in found:
        data = read_bytes(path, MOST_BYTES)
        name = _NAME.fullmatch(path.name)
        if name is None or hashlib.sha256(data).hexdigest()[:16] != name[2]:
            continue
        length = int.from_bytes(data[:8], "little")
        if f'"about":"{about}"'.encode() not in data[8 : 8 + length]:
            raise CannotResume(
                "was saved with another graph, network or training",
                place=str(path),
                fix="use the file that it began with (only `epochs`, `keep`, `checkpoint_every` "
                "and [memory] may change), or begin anew in another folder: --run",
            )
        return Saved(int(name[1]), load(data), about)
    if found:
        raise CannotResume(
            "its bytes are not those that were saved, and so is every other one in the folder",
            place=str(found[0]),
            fix="use a copy, or begin anew in another folder: --run",
        )
    return None
