"""The kinds of device that ranks can compute on, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ratrain.devices.cpu import CPU
from ratrain.devices.device import Device
from ratrain.errors import SpecError


def _cuda(number: int) -> Device:
    from ratrain.devices.cuda import Cuda, prepare_environment

    prepare_environment()
    require_gpu(number)
    return Cuda(number)


def _deferred(number: int) -> Device:
    from ratrain.devices.deferred import Deferred

    return Deferred(number)


def _mt3000(_: int) -> Device:
    from ratrain.devices.mt3000 import MT3000

    return MT3000()


DEVICE_KINDS: dict[str, Callable[[int], Device]] = {
    "cpu": lambda _: CPU,
    "cuda": _cuda,
    "deferred": _deferred,
    "mt3000": _mt3000,
}
"""By name: what makes the device of a number, of those of its kind on this host."""


def device_of_kind(kind: str, number: int = 0) -> Device:
    """A device; a `SpecError` where it is not there."""
    if kind not in DEVICE_KINDS:
        raise SpecError(
            f"ranks cannot compute on devices of kind {kind!r}",
            place="[train] device",
            fix=f"choose one of {', '.join(DEVICE_KINDS)}",
        )
    return DEVICE_KINDS[kind](number)


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
