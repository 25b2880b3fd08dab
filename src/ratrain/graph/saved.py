"""Checkpoints of a graph's training: parameters and the optimizer's states, a file an epoch, whole
or absent. A file's name ends in the hash of its bytes."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from ratrain.checkpoint.disk import make_folder, sync_folder, told
from ratrain.errors import CannotResume
from ratrain.graph.network import Parameters
from ratrain.graph.optimize import Optimizer
from ratrain.readers.files import read_bytes

MOST_BYTES = 1 << 36
_NAME = re.compile(r"epoch-(\d{9})-([0-9a-f]{16})\.safetensors")


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds. `about`: of which graph, network and training it is."""

    epoch: int
    tensors: dict[str, torch.Tensor]
    about: str


def state_of(parameters: Parameters, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Parameters and the optimizer's states, by name."""
    tensors = {f"parameter.{name}": value.detach() for name, value in parameters.items()}
    return tensors | {f"optimizer.{name}": value for name, value in optimizer.states.items()}


def restore(saved: Saved, parameters: Parameters, optimizer: Optimizer) -> None:
    """Puts them back."""
    with torch.no_grad():
        for name, held in state_of(parameters, optimizer).items():
            held.copy_(saved.tensors[name])
    optimizer.steps = saved.epoch


def save(folder: Path, saved: Saved, keep: int) -> Path:
    """Writes one, waits until the disk has it, and removes old ones."""
    from safetensors.torch import save as as_bytes

    data = as_bytes(
        {name: value.contiguous() for name, value in saved.tensors.items()},
        {"about": saved.about},  # one key: the library writes several in any order
    )
    digest = hashlib.sha256(data).hexdigest()[:16]
    path = folder / f"epoch-{saved.epoch:09}-{digest}.safetensors"
    partial = folder / "partial"
    with told(folder, "saving"):
        make_folder(folder)
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(folder)
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
