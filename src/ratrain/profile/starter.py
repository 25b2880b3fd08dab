"""A cluster file of this machine to begin with: looked at and measured in a few seconds.

`ratrain profile` measures it thoroughly; what is only assumed here says so.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ratrain.describe.units import counted
from ratrain.profile import memory, products
from ratrain.profile.clock import timing
from ratrain.profile.doubt import Doubt, Watch
from ratrain.profile.driving import DrivingTimes, driving_times, driving_toml
from ratrain.profile.quota import processors

Progress = Callable[[int, int], None]
STEPS = 5
_LEFT_FOR_OTHERS = 0.2
"""Of main memory: for the system, and for Python and torch themselves."""


@dataclass(frozen=True)
class Machine:
    """This machine's devices, all of one kind. `flops`: of a large product, by dtype; `assumed`:
    dtypes whose rate was not measured."""

    host: str
    device: str
    devices: int
    is_gpu: bool
    capacity_bytes: int
    memory_bytes_per_s: float
    flops: dict[str, float]
    assumed: tuple[str, ...]
    launch_s: float
    doubts: tuple[Doubt, ...] = ()
    driving: DrivingTimes | None = None  # of a processor: it moves its own bytes

    @property
    def dtype(self) -> str:
        """What to train in."""
        return "bf16" if self.is_gpu else "fp32"


def look(progress: Progress = lambda _done, _total: None) -> Machine:
    """This machine: its GPUs where torch sees any, else its processor as one device."""
    watch = Watch()
    progress(0, STEPS)
    is_gpu = products.gpu_present()
    progress(1, STEPS)
    kind = "cuda" if is_gpu else "cpu"
    flops = {
        dtype: products.large_product(watch, kind, dtype).flops_rate for dtype in _measured(is_gpu)
    }
    assumed = tuple(dtype for dtype in ("fp32", "bf16", "fp16") if dtype not in flops)
    flops |= {dtype: flops.get("bf16", flops["fp32"]) for dtype in assumed}
    progress(2, STEPS)
    device, devices, capacity, bandwidth = _gpus() if is_gpu else _processor(watch)
    progress(3, STEPS)
    start_s = products.launch_s(watch)
    progress(4, STEPS)
    driving = None if is_gpu else driving_times(watch, processors())
    progress(STEPS, STEPS)
    host, doubts = socket.gethostname(), tuple(watch.doubts)
    figures = capacity, bandwidth, flops, assumed, start_s
    return Machine(host, device, devices, is_gpu, *figures, doubts, driving)


def _measured(is_gpu: bool) -> tuple[str, ...]:
    if is_gpu:
        return "fp32", "bf16", "fp16"
    return ("fp32", "bf16") if products.torch_installed() else ("fp32",)


def _processor(watch: Watch) -> tuple[str, int, int, float]:
    """(name, count, bytes, bytes a second): all cores are one device."""
    capacity = int(memory.capacity_bytes() * (1 - _LEFT_FOR_OTHERS))
    name = f"{platform.machine() or 'machine'}-{os.cpu_count() or 1}-cores"
    return name, 1, capacity, memory.memory_bytes_per_s(watch)


def _gpus() -> tuple[str, int, int, float]:
    import torch as module  # pyright: ignore[reportMissingImports]

    torch: Any = module
    properties = torch.cuda.get_device_properties(0)
    source = torch.empty(256_000_000, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    rate = 2 * source.numel() / timing(copy).median_s
    name = str(properties.name).lower().replace(" ", "-")
    return name, int(torch.cuda.device_count()), int(properties.total_memory), rate


def doubt_words(machine: Machine) -> list[str]:
    """A sentence where something disturbed the measurements."""
    if not machine.doubts:
        return []
    first = machine.doubts[0]
    return [
        f"DOUBTFUL: something disturbed {counted(len(machine.doubts), 'measurement')} "
        f"({first.figure}: {first.why}).",
        "Run this command again when nothing else runs on this machine.",
    ]


def assumed_text(gpus: int) -> str:
    """The text of a cluster file like that of a machine with so many GPUs, of which nothing was
    measured: to check what a job for it says."""
    dtypes = ("fp32", "bf16", "fp16")
    flops: dict[str, float] = dict.fromkeys(dtypes, 1000000000000.0)
    sizes = 1_000_000_000_000, 1e11
    machine = Machine("host", "device", gpus or 1, gpus > 0, *sizes, flops, dtypes, 1e-5)
    return cluster_text(machine)


def cluster_text(machine: Machine) -> str:
    """The cluster file's text."""
    lines = [
        "# Written by `ratrain init cluster`, after measuring this machine for a few seconds.",
        '# A job names it: [cluster] name = "this-file.toml". `ratrain profile -o FILE` measures',
        "# more, and more accurately. Plans, predictions and memory proofs use these numbers.",
        *(f"# {sentence}" for sentence in doubt_words(machine)),
        'name = "this-machine"',
        'source = "ratrain init cluster: measured for a few seconds"',
        "",
        "# A kind of device. Add a [[device]] for each further kind.",
        "[[device]]",
        f'name = "{machine.device}"',
        f'launch = "{machine.launch_s * 1e6:.3f}us"  # what starting an operator costs',
        'launch_source = "measured: a numpy product of one element"',
        "memory_efficiency = 1.0  # of the bandwidth below",
        'memory_efficiency_source = "the bandwidth below is what a copy reached"',
        "",
        "# Its memory; the first tier is what a job's memory_budget is about.",
        "[[device.tiers]]",
        'name = "HBM"' if machine.is_gpu else 'name = "RAM"',
        f'capacity = "{machine.capacity_bytes / 1e9:.3f}GB"',
        f'bandwidth = "{machine.memory_bytes_per_s / 1e9:.3f}GB/s"',
        f'source = "{_capacity_source(machine)}; bandwidth: measured, a large copy"',
        *_driving(machine),
        *_rates(machine),
        "",
        "# How many devices each machine has. For more machines like this one, raise `count`.",
        "[[host]]",
        f'name = "{machine.host}"',
        f'device = "{machine.device}"',
        f"devices = {machine.devices}",
        "count = 1",
        *_links(machine),
    ]
    return "\n".join(lines) + "\n"


def _capacity_source(machine: Machine) -> str:
    if machine.is_gpu:
        return "capacity: as the driver reports"
    return f"capacity: {1 - _LEFT_FOR_OTHERS:.0%} of the system's memory"


def _driving(machine: Machine) -> list[str]:
    if machine.driving is None:
        return []
    comment = "# What messages take of its processors, and compute loses by that."
    return ["", comment, *driving_toml(machine.driving)]


def _rates(machine: Machine) -> list[str]:
    lines: list[str] = []
    for dtype, rate in machine.flops.items():
        source = "measured: one large product; the peak is not known"
        if dtype in machine.assumed:
            source = "assumed: as fast as the dtype before it"
        lines += [
            "",
            "[[device.rates]]",
            f'dtype = "{dtype}"',
            f'peak = "{rate / 1e9:.3f}GFLOP/s"',
            f'gemm = "{rate / 1e9:.3f}GFLOP/s"',
            f'source = "{source}"',
        ]
    return lines


def _links(machine: Machine) -> list[str]:
    inside = [
        "",
        "# Between devices of one host.",
        "[links.host]",
        'latency = "10us"',
        'bandwidth = "20GB/s"',
        'source = "assumed: PCIe 4.0 x16; NVLink is several times as fast"',
    ]
    between = [
        "",
        "# Between hosts.",
        "[links.room]",
        'latency = "100us"',
        'bandwidth = "1Gbit/s"',
        'shared_by = "host"',
        'source = "assumed: gigabit Ethernet; `ratrain net check` measures it"',
    ]
    return [*(inside if machine.devices > 1 else []), *between]
