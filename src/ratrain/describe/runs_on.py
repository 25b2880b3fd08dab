"""What torch computes on in a rank: a CPU, a GPU, an emulated device, or one of somebody's own.

A cluster file says it of each kind of device (`runs_on`), a job of all (`[train] device`). Nothing
here needs torch: plans and launchers ask too. A file of your own may declare one
(docs/how-to/extending.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.errors import SpecError
from ratrain.plugins import Registry

AS_CLUSTER = "auto"
"""The [train] device that leaves it to the cluster file."""


@dataclass(frozen=True)
class RunsOn:
    """`name`: what torch calls the type of its tensors' device, where that is not the CPU's.
    `made_by`: "module:function", called with a number, of those on a host, for a
    `ratrain.devices.Device`. `in_host_memory`: its tensors take the process's memory. `is_gpu`: it
    must be found on the machine, and some microseconds begin each piece of work."""

    name: str
    doc: str
    made_by: str
    in_host_memory: bool = True
    is_gpu: bool = False


RUNS_ON: Registry[RunsOn] = Registry("device that ranks compute on")


def declare_device(device: RunsOn) -> None:
    """Makes it known by its name."""
    RUNS_ON.declare(device.name, device)


def runs_on_named(name: str, place: str = "runs_on") -> RunsOn:
    """What a key says; a name that is not known is a SpecError at that key."""
    if name not in RUNS_ON:
        raise SpecError(
            f"ranks cannot compute on {name!r}", place=place, fix=f"use one of {', '.join(RUNS_ON)}"
        )
    return RUNS_ON[name]


def is_gpu(name: str) -> bool:
    """Of a name, or of torch's type of a device."""
    return name in RUNS_ON and RUNS_ON[name].is_gpu


declare_device(RunsOn("cpu", "the processors of the host", "ratrain.devices.cpu:made"))
declare_device(
    RunsOn("cuda", "a GPU", "ratrain.devices.cuda:made", in_host_memory=False, is_gpu=True)
)
declare_device(
    RunsOn("deferred", "a CPU that finds missing order", "ratrain.devices.deferred:Deferred")
)
declare_device(
    RunsOn("mt3000", "a CPU with the sums of an MT-3000's kernels", "ratrain.devices.mt3000:made")
)
