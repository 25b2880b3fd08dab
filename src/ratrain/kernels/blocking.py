"""Which blocks a product takes: every combination that fits the memories is priced by a closed
form, and the cheapest few are written and put on the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from ratrain.errors import ProgramError
from ratrain.kernels import micro
from ratrain.kernels.build import Kernel
from ratrain.kernels.clock import time_of
from ratrain.kernels.gemm import Blocks
from ratrain.kernels.machine import Machine

CLOCKED = 3
"""Blocks that are put on the clock."""
DEPTHS = (64, 128, 256, 512, 1024, 2048)
SHARES = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (1, 4))
"""Buffers of a block of A in GSM, and tiles of C that have their rows in it."""


@dataclass(frozen=True)
class Product:
    """m x n sums over `depth`."""

    mode: str  # "nn", "nt", or "resident": C stays in AM for all of k
    m: int
    n: int
    depth: int
    dtype: str
    k_c: int | None = None

    @property
    def bytes(self) -> int:
        return np.dtype(self.dtype).itemsize

    def tile_cycles(self, machine: Machine, m: int, n: int, k: int) -> float:
        dtype = np.dtype(self.dtype)
        if self.mode == "nt":
            return micro.nt_cycles(machine, m, n, k, dtype)
        return micro.nn_cycles(machine, m, n, k, dtype, self.k_c)


Writer = Callable[[Kernel, Blocks], None]


def best_blocks(machine: Machine, product: Product, write: Writer) -> Blocks:
    """The fastest on the clock, of the `CLOCKED` that the closed form finds fastest."""
    known = _BEST.get((machine, product))
    if known is None:
        priced = sorted(
            (
                (estimated_s(machine, product, blocks), blocks)
                for blocks in _fitting(machine, product)
            ),
            key=lambda row: row[0],
        )[:CLOCKED]
        if not priced:
            raise ProgramError(
                f"no blocks of a product of {product.m} x {product.n} x {product.depth} fit "
                f"{machine.name}",
                fix="take smaller sizes",
            )

        def clocked_s(blocks: Blocks) -> float:
            return time_of(lambda k: write(k, blocks), machine).time_s

        known = min((blocks for _, blocks in priced), key=clocked_s)
        _BEST[machine, product] = known
    return known


_BEST: dict[tuple[Machine, Product], Blocks] = {}


def _fitting(machine: Machine, p: Product) -> Iterator[Blocks]:
    lanes = machine.lanes(np.dtype(p.dtype))
    widths = {w * lanes for w in (1, 2, 3, 4, 6, 8, 12)} if p.mode != "nt" else {8, 16, 32, 64, 128}
    for n in sorted(min(width, _rounded(p.n, lanes)) for width in widths):
        for k in sorted({min(depth, p.depth) for depth in DEPTHS}):
            for step in (6, 12, 24):
                for a_buffers, tiles in SHARES if p.mode == "resident" else SHARES[:2]:
                    blocks = _largest(machine, p, n, k, min(step, p.m), a_buffers, tiles)
                    if blocks is not None:
                        yield blocks


def _rounded(length: int, size: int) -> int:
    return -(-length // size) * size


@cache
def _largest(
    machine: Machine, p: Product, n: int, k: int, step: int, a_buffers: int, tiles: int
) -> Blocks | None:
    """The blocks with the most rows that fit beside these sizes; of resident sums, `tiles` lie in a
    block of A."""
    d = p.bytes
    gsm_rows = machine.gsm_bytes // (k * d * a_buffers)
    if p.mode == "nt":
        if (2 * step + 2 * n) * k * d > machine.am_bytes:
            return None
        rows = machine.sm_bytes // (3 * n * d)
    else:
        if 2 * step * k * d > machine.sm_bytes:
            return None
        of_c = {"nn": 3 * d, "resident": 4 + d}[p.mode]
        rows = (machine.am_bytes // n - 2 * k * d) // of_c
    if p.mode == "resident":
        rows = min(rows, machine.gsm_bytes // (p.depth * d * a_buffers * tiles))
    rows = _even(p.m, rows, step)
    if rows < 1 or gsm_rows < rows:
        return None
    whole = min(rows * tiles, p.m) if p.mode == "resident" else _even(p.m, gsm_rows, rows)
    return Blocks(whole, rows, step, k, n, a_buffers)


def _even(length: int, most: int, step: int) -> int:
    """A number of rows, at most `most` and a multiple of `step`, in parts as equal as may be."""
    if most >= length:
        return length
    most -= most % step
    if most < 1:
        return 0
    parts = -(-length // most)
    return min(most, _rounded(-(-length // parts), step))


def estimated_s(machine: Machine, p: Product, b: Blocks) -> float:
    """The closed form: tiles of C one after the other, each as long as its compute or as all
    cores' transfers, whichever is longer; loads of blocks of A that nothing hides."""
    d, ddr, clock = p.bytes, machine.ddr_bytes_per_s, machine.clock_hz
    steps, rounds = b.m_tile / b.m_step, math.ceil(p.n / b.n / machine.cores)
    busy = min(machine.cores, math.ceil(p.n / b.n))
    one = p.tile_cycles(machine, b.m_step, b.n, b.k) + machine.transfer_cycles
    compute_s = (steps * one + 2 * machine.transfer_cycles) / clock
    row_s = machine.strided_row_s
    a_bytes = b.m_gsm * b.k * d
    depths = p.depth / b.k
    if p.mode == "resident":
        tiles = math.ceil(p.n / b.n) * math.ceil(b.m_gsm / b.m_tile)
        a_s = b.m_gsm * p.depth * d / ddr
        moved_s = min(tiles, machine.cores) * (b.k * b.n * d / ddr + b.k * row_s)
        tile_s = math.ceil(tiles / machine.cores) * depths * max(compute_s, moved_s)
        exposed_s = a_s if b.a_buffers == 1 else max(0.0, a_s - tile_s)
        return p.m / b.m_gsm * (tile_s + exposed_s)
    c_s = 2 * (b.m_tile * b.n * d / ddr + b.m_tile * row_s)
    b_s = (b.k * b.n * d / ddr + b.k * row_s) * b.m_tile / b.m_gsm
    tile_s = max(compute_s, busy * (c_s + b_s))
    block_s = rounds * b.m_gsm / b.m_tile * tile_s
    exposed_s = a_bytes / ddr if b.a_buffers == 1 else max(0.0, a_bytes / ddr - block_s)
    return p.m / b.m_gsm * depths * (block_s + exposed_s)
