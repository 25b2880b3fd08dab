"""Products of matrices as tile programs: the loops of the published kernels (P1 section 3).

A block of A lies in GSM for all cores; the columns of C are dealt to the cores; each core holds a
block of B in AM, and streams tiles of A (to SM) and of C (to AM) past it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.kernels.build import Core, Kernel
from ratrain.kernels.machine import AM, SM
from ratrain.kernels.tiles import Tile


@dataclass(frozen=True)
class Blocks:
    """Rows of A in GSM, of C in AM, of A in SM; depth; columns of C of one core."""

    m_gsm: int
    m_tile: int
    m_step: int
    k: int
    n: int
    a_buffers: int = 1  # of the block in GSM
    c_buffers: int = 3  # of C in AM: one arrives, one is computed, one leaves


def gemm_nn(k: Kernel, m: int, n: int, depth: int, dtype: str, blocks: Blocks) -> None:
    """C += A B."""
    a, b = k.input("a", m, depth, dtype), k.input("b", depth, n, dtype)
    c = k.updated("c", m, n, dtype)
    for rows in k.tiles(m, blocks.m_gsm, fold="m", least=blocks.a_buffers):
        for inner in k.tiles(depth, blocks.k, fold="k", least=blocks.a_buffers):
            block = k.share(a[rows, inner], "a", blocks.a_buffers)
            for core, columns in k.deal(n, blocks.n, fold="n"):
                b_tile = core.load(b[inner, columns], AM, "b", 2)
                for part in k.tiles(block.shape[0], blocks.m_tile):
                    c_region = c[_within(rows, part), columns]
                    c_tile = core.load(c_region, AM, "c", blocks.c_buffers)
                    _stream(k, core, block[part], b_tile, c_tile, blocks)
                    core.store(c_tile, c_region)


def gemm_nt(k: Kernel, m: int, n: int, depth: int, dtype: str, blocks: Blocks) -> None:
    """C += A B^T, where B is n x depth: A and B in AM, C in SM."""
    a, b = k.input("a", m, depth, dtype), k.input("b", n, depth, dtype)
    c = k.updated("c", m, n, dtype)
    for rows in k.tiles(m, blocks.m_gsm, fold="m", least=blocks.a_buffers):
        for inner in k.tiles(depth, blocks.k, fold="k", least=blocks.a_buffers):
            block = k.share(a[rows, inner], "a", blocks.a_buffers)
            for core, columns in k.deal(n, blocks.n, fold="n"):
                b_tile = core.load(b[columns, inner], AM, "b", 2)
                for part in k.tiles(block.shape[0], blocks.m_tile):
                    c_region = c[_within(rows, part), columns]
                    c_tile = core.load(c_region, SM, "c", blocks.c_buffers)
                    for step in k.tiles(c_tile.shape[0], blocks.m_step):
                        a_tile = core.load(block[part][step], AM, "a tile", 2)
                        core.mm_nt(c_tile[step], a_tile, b_tile)
                    core.store(c_tile, c_region)


def gemm_tt(k: Kernel, m: int, n: int, depth: int, dtype: str, blocks: Blocks) -> None:
    """C += A^T B^T, where A is depth x m and B n x depth: as (B A)^T, each tile of sums transposed
    in AM as it is added to C."""
    a, b = k.input("a", depth, m, dtype), k.input("b", n, depth, dtype)
    c = k.updated("c", m, n, dtype)
    for rows in k.tiles(n, blocks.m_gsm, fold="n", least=blocks.a_buffers):
        for inner in k.tiles(depth, blocks.k, fold="k", least=blocks.a_buffers):
            block = k.share(b[rows, inner], "b", blocks.a_buffers)
            for core, columns in k.deal(m, blocks.n, fold="m"):
                a_tile = core.load(a[inner, columns], AM, "a", 2)
                for part in k.tiles(block.shape[0], blocks.m_tile):
                    c_region = c[columns, _within(rows, part)]
                    total = core.tile(c_region.shape[1], c_region.shape[0], dtype, "sums")
                    core.fill(total, 0.0)
                    _stream(k, core, block[part], a_tile, total, blocks)
                    c_tile = core.load(c_region, AM, "c", 2)
                    core.turn(c_tile, total, add=True)
                    core.store(c_tile, c_region)


def gemm_half(k: Kernel, m: int, n: int, depth: int, blocks: Blocks, k_c: int | None) -> None:
    """C = A B of FP16, summed in FP32 after every `k_c` terms. All of k of some rows of A lies in
    GSM, and a tile of C stays in AM until it is complete: through DDR it would go twice, in FP32,
    for every block of k. Tiles of these rows are dealt too, where columns do not fill the cores."""
    a, b = k.input("a", m, depth, "f2"), k.input("b", depth, n, "f2")
    c = k.output("c", m, n, "f2")
    for rows in k.tiles(m, blocks.m_gsm, fold="m", least=blocks.a_buffers + 1):
        whole = k.share(a[rows, :], "a", blocks.a_buffers)
        parts, widths = k.tiles(whole.shape[0], blocks.m_tile), k.tiles(n, blocks.n)
        for core, turn in k.deal(len(parts) * len(widths), 1, fold="n"):
            part, columns = parts[turn.start % len(parts)], widths[turn.start // len(parts)]
            c_region = c[_within(rows, part), columns]
            total = core.tile(*c_region.shape, "f2" if k_c is None else "f4", "sums")
            core.fill(total, 0.0)
            for inner in k.tiles(depth, blocks.k, fold="k", least=5):
                b_tile = core.load(b[inner, columns], AM, "b", 2)
                _stream(k, core, whole[part, inner], b_tile, total, blocks, k_c)
            if total.dtype != c_region.dtype:
                half = core.tile(*total.shape, "f2", "half")
                core.map(half, lambda x: x, total, slots=2)
                total = half
            core.store(total, c_region)


def _stream(
    k: Kernel,
    core: Core,
    a: Tile,
    b_tile: Tile,
    total: Tile,
    blocks: Blocks,
    k_c: int | None = None,
) -> None:
    """total += a b, with tiles of a going from GSM to SM in turn."""
    for step in k.tiles(a.shape[0], blocks.m_step):
        core.mm(total[step], core.load(a[step], SM, "a tile", 2), b_tile, k_c)


def _within(outer: slice, inner: slice) -> slice:
    return slice(outer.start + inner.start, outer.start + inner.stop)
