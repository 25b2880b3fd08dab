"""Which GPUs this machine has, and whether they are those of a job. No tool is run to find out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ratrain.describe.device import DeviceKind
from ratrain.describe.runs_on import is_gpu

_DRIVER = Path("/proc/driver/nvidia/gpus")
_MODEL_NUMBER = re.compile(r"[a-z]+\d")  # of a100, t4, h200; not of 80g


def gpu_names(driver: Path = _DRIVER) -> list[str]:
    """The names of this machine's CUDA GPUs, as NVIDIA's driver writes them; torch is asked where
    the driver shows no folder."""
    if not driver.is_dir():
        import torch

        here = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
        return [torch.cuda.get_device_name(number) for number in here]
    names: list[str] = []
    for file in sorted(driver.glob("*/information")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                names.append(value.strip())
    return names


def missing_here(
    kinds: Sequence[DeviceKind], gpus: Sequence[str], *, shared: bool = False
) -> list[DeviceKind]:
    """Of the devices of one job those that are not among a machine's: a processor always is, a GPU
    serves one of them, or where it is shared any number."""
    free, missing = list(gpus), list[DeviceKind]()
    for kind in kinds:
        if kind.is_processor:
            continue
        gpu = next((name for name in free if is_called(name, kind.name)), None)
        if gpu is None or not is_gpu(kind.runs_on):
            missing.append(kind)
        elif not shared:
            free.remove(gpu)
    return missing


def is_called(gpu: str, kind: str) -> bool:
    """Whether a kind of device, "a100-80g-sxm", is the GPU "NVIDIA A100-SXM4-80GB": by the first
    word that has a model's number, else by the whole name. One that is called "gpu" is any."""
    ours, theirs = _words(kind), _words(gpu)
    if ours == ["gpu"]:
        return True
    model = next((word for word in ours if _MODEL_NUMBER.match(word)), None)
    return model in theirs if model else "".join(ours) in "".join(theirs)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
