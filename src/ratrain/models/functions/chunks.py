"""How many elements are worked on at once where a copy of them is made: on a CPU as many as stay in
a core's cache; on a GPU, which takes some microseconds to begin each piece, many."""

from __future__ import annotations

from torch import Tensor

CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 25}
"""By the kind of device; `cost.scratch` counts the same."""
CPU_KERNELS = ("cpu", "deferred")
"""Kinds of device whose operators are the CPU's."""


def chunk_elements(tensor: Tensor) -> int:
    """Of the device that a tensor is on."""
    return CHUNK_ELEMENTS.get(tensor.device.type, CHUNK_ELEMENTS["cpu"])
