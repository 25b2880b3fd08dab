"""Kernels as tile programs: small programs over tiles in the memories of a cluster of DSP cores,
proved, run for their values and timed in the columns of the training programs."""

from __future__ import annotations

from ratrain.kernels import known as _known  # declares the kernels that come with RATrain
from ratrain.kernels.build import Core, Kernel
from ratrain.kernels.clock import time_of, timeline_of, written
from ratrain.kernels.compare import Difference, differences
from ratrain.kernels.figures import Figure, figure_of
from ratrain.kernels.machine import AM, DDR, GSM, MACHINES, SM, Machine
from ratrain.kernels.registry import KERNELS, TileKernel, declare_kernel, kernel_named
from ratrain.kernels.score import Scored, read_rows, scored
from ratrain.kernels.text import program_text

__all__ = [
    "AM",
    "DDR",
    "GSM",
    "KERNELS",
    "MACHINES",
    "SM",
    "Core",
    "Difference",
    "Figure",
    "Kernel",
    "Machine",
    "Scored",
    "TileKernel",
    "declare_kernel",
    "differences",
    "figure_of",
    "kernel_named",
    "program_text",
    "read_rows",
    "scored",
    "time_of",
    "timeline_of",
    "written",
]
del _known
