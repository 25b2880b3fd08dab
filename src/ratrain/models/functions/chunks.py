"""How many elements are worked on at once where a copy of them is made: on a CPU as many as stay in
a core's cache; on a GPU, which takes some microseconds to begin each piece, many."""

from __future__ import annotations

from torch import Tensor

from ratrain.describe.runs_on import is_gpu

ON_CPU, _ON_GPU = 1 << 20, 1 << 25
"""`cost.scratch` counts the same."""
CPU_KERNELS = ("cpu", "deferred")
"""Kinds of device whose operators are the CPU's."""


def chunk_elements(tensor: Tensor) -> int:
    """Of the device that a tensor is on."""
    return _ON_GPU if is_gpu(tensor.device.type) else ON_CPU
