"""What is said of a kernel's time: beside the bound that no program of it can beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ratrain.kernels.clock import Timed, time_of
from ratrain.kernels.machine import Machine
from ratrain.kernels.registry import Sizes, TileKernel


@dataclass(frozen=True)
class Figure:
    """A kernel of some sizes on the clock."""

    kernel: str
    machine: str
    cores: int
    sizes: Mapping[str, int]
    timed: Timed
    flops: float  # that its result needs; 0 where products are not what takes time
    peak_flops: float  # of all cores
    ddr_bytes_per_s: float
    published: str

    @property
    def compute_bound_s(self) -> float:
        return self.flops / self.peak_flops

    @property
    def ddr_bound_s(self) -> float:
        """Every tensor once in each direction."""
        return self.timed.least_bytes / self.ddr_bytes_per_s

    @property
    def bound_s(self) -> float:
        return max(self.compute_bound_s, self.ddr_bound_s)

    @property
    def bound_by(self) -> str:
        return "DDR" if self.ddr_bound_s >= self.compute_bound_s else "vector units"

    @property
    def of_bound(self) -> float:
        return self.bound_s / self.timed.time_s

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.timed.time_s


def figure_of(declared: TileKernel, machine: Machine, sizes: Sizes) -> Figure:
    """Proves the kernel, and puts it on the clock."""
    return Figure(
        declared.name,
        machine.name,
        machine.cores,
        sizes,
        time_of(declared.writing(sizes), machine),
        declared.flops(sizes),
        machine.cores * machine.peak_flops(np.dtype(declared.flops_dtype)),
        machine.ddr_bytes_per_s,
        declared.published,
    )
