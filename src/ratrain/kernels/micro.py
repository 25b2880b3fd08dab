"""Cycles of a core's vector unit: products by micro-kernel, loops over vectors, transposition.

The formulas of products are the published ones (P1 sections 4 and 5, the note on merged NT
micro-kernels); `ratrain kernels score` sets them beside the measurements. What is assumed for FP16
says so: nothing is published of it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ratrain.kernels.machine import Machine

Dtype = np.dtype[Any]

ROWS = 6
"""Rows of an NN micro-kernel; 8 fit the registers too, and are taken where they leave no rest."""
NN_AROUND = 26  # first loads and last stores of an NN micro-kernel
NT_AROUND = 138  # the same of NT: with the sums over lanes
NN_CALL, NT_CALL, MERGED_CALL = 7, 9, 15  # measured
FP32_SUMS_AROUND = 92  # FP32 sums are loaded and stored beside the FP16 ones; assumed
TURN_CYCLES = 0.16  # of an element in a 16 x 16 block, by modulo stores


def vectors(machine: Machine, elements: int, dtype: Dtype) -> int:
    return -(-elements // machine.lanes(dtype))


def nn_kernel(rows: int, width: int, k: int) -> float:
    """One micro-kernel of `rows` by `width` vectors. Three FMA a cycle, and one scalar
    broadcast: below three vectors the broadcasts are what takes time."""
    return rows * max(width / 3, 1.0) * (k + k % 2) + NN_AROUND + NN_CALL


@cache
def nn_cycles(machine: Machine, m: int, n: int, k: int, dtype: Dtype, k_c: int | None) -> float:
    """Of a tile product with rows of B in vectors: micro-kernels of 6 rows by 3 or 4 vectors.

    `k_c`, of FP16 alone: None sums in FP16; 0 in FP32 by mixed multiplication, at half of the rate;
    otherwise FP16 sums over `k_c` terms are added to FP32 ones (2 conversions and 2 sums a vector).
    """
    total = 0.0
    for rows, row_count in _parts(m, 8 if m % ROWS and not m % 8 else ROWS):
        for width, count in _widths(vectors(machine, n, dtype)):
            cycles = nn_kernel(rows, width, k)
            if k_c == 0:
                cycles += rows * max(width / 3, 1.0) * k
            elif k_c is not None:
                cycles += FP32_SUMS_AROUND + rows * width * 4 / 3 * -(-k // k_c)
            total += row_count * count * (cycles + machine.call_cycles)
    return total


@cache
def nt_cycles(machine: Machine, m: int, n: int, k: int, dtype: Dtype) -> float:
    """Of a tile product with rows of A and of B in vectors along k: 6 x 8 sums, each of them a
    vector that is summed over its lanes at the end."""
    kernels = -(-m // 6) * -(-n // 8)
    return kernels * (16 * vectors(machine, k, dtype) + NT_AROUND + NT_CALL + machine.call_cycles)


def merged_nt_kernel(tiles: int, k: int) -> float:
    """The merged NT micro-kernel: `tiles` of 3 x 6 sums, each summed over lanes beside the next
    one's products. FP64."""
    return 92 + (14 + 3 * k / 8) * tiles


def loop_cycles(machine: Machine, elements: int, slots: float, moved_bytes: float) -> float:
    """Of FP32 work on each element: `slots` instructions a vector on three units, or the AM's
    bytes, whichever takes longer."""
    count = vectors(machine, elements, np.dtype("f4"))
    work = count * slots / machine.vector_units
    return machine.start_cycles + max(work, moved_bytes / machine.am_bytes_per_cycle)


def turn_cycles(machine: Machine, elements: int, dtype: Dtype) -> float:
    """Of a transposition in AM: modulo stores move 64 bits, so two FP32 or four FP16 at once."""
    return machine.start_cycles + elements * TURN_CYCLES * dtype.itemsize / 8


def _parts(length: int, size: int) -> list[tuple[int, int]]:
    """(size, how many) of the whole parts and of the rest."""
    whole, rest = divmod(length, size)
    return [part for part in ((size, whole), (rest, 1)) if part[0] and part[1]]


def _widths(count: int) -> list[tuple[int, int]]:
    """(vectors, how many) of the micro-kernels that cover a row of so many vectors: of three, or
    of four where that leaves nothing over (the released kernels')."""
    return _parts(count, 4 if count % 3 and not count % 4 else 3)
