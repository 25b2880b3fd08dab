"""The device of a name and a number."""

from __future__ import annotations

import torch

from ratrain.describe.runs_on import runs_on_named
from ratrain.devices.device import Device
from ratrain.errors import SpecError
from ratrain.plugins import named


def device_of_kind(kind: str, number: int = 0) -> Device:
    """A device; a `SpecError` where it is not there."""
    return named(runs_on_named(kind, "[train] device").made_by)(number)


def gpus_here() -> int:
    """How many GPUs torch can use on this host."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def require_gpu(number: int) -> None:
    """Refuses a GPU that is not there."""
    here = gpus_here()
    if number < here:
        return
    if not here and torch.version.cuda is None:
        problem, fix = "this build of torch has no CUDA", "install one that has, or --device cpu"
    elif not here:
        problem, fix = "torch finds no GPU on this host", "look at `nvidia-smi`, or --device cpu"
    else:
        problem = f"GPU {number} is wanted, this host has {here}"
        fix = "give the host fewer ranks, or let them share GPUs: --share-gpu"
    raise SpecError(problem, place="[train] device", fix=fix)
