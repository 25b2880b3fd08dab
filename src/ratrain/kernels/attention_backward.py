"""Attention backward as a tile program, in two passes and seven products: no sum goes across cores.

The first has keys on the lanes and makes dK and dV; the second has queries there and makes dQ.
Scores are computed again in both. One pass of five products would need sums of dQ over DDR, or all
of a head's in GSM; with fewer heads than cores it is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ratrain.kernels.attention import (
    EXP_SLOTS,
    Attended,
    add_products,
    in_gsm,
    pieces,
    products,
    turned,
)
from ratrain.kernels.build import Core, Kernel, Matrix
from ratrain.kernels.machine import AM
from ratrain.kernels.tiles import Array, Tile


def backward(
    k: Kernel,
    heads: int,
    length: int,
    width: int,
    causal: int,
    block: int = 192,
    chunk: int = 128,
    piece: int = 64,
) -> None:
    """dQ, dK and dV, from Q, K, V, O, dO and the logarithms of the rows' sums."""
    about = Attended(heads, length, width, bool(causal))
    unit = max(min(piece, chunk), 1)  # rows of D that are stored, and loaded, at once
    block, chunk = (max(size // unit, 1) * unit for size in (block, chunk))
    rows = heads * length
    q, key, value, out, given = (
        k.input(name, rows, width, "f2") for name in ("q", "k", "v", "o", "do")
    )
    sums = k.input("lse", rows, 1, "f4")
    dot = k.output("dot", rows, 1, "f4")
    dq, dk, dv = (k.output(name, rows, width, "f2") for name in ("dq", "dk", "dv"))
    for head in range(heads):
        _dots(k, about, head, out, given, dot, unit)  # first: cores wait for each other's rows
    for head in range(heads):
        columns = (q, given), (key, value), (sums, dot), (dk, dv)
        _keys_pass(k, about, head, *columns, block, chunk, unit)
    for head in range(heads):
        _queries_pass(k, about, head, (q, given), (key, value), (sums, dot), dq, block, chunk, unit)


Pair = tuple[Matrix, Matrix]
SHARED = ("first", "second")
"""The tensors of a head that all cores read: Q and dO, then K and V, in the same buffers."""


def _dots(
    k: Kernel, about: Attended, head: int, out: Matrix, given: Matrix, dot: Matrix, unit: int
) -> None:
    """D = the sum of dO O of each row. The parts are those that the passes read again."""
    for core, part in k.deal(about.length, unit):
        here = about.rows(head, part)
        tiles = [core.load(t[here, :], AM, n) for t, n in ((out, "o"), (given, "do"))]
        column = core.tile(tiles[0].shape[0], 1, "f4", "dots", 2)
        core.reduce(column, lambda o, g: (o * g).sum(1, keepdims=True), *tiles, slots=2)
        core.store(column, dot[here, :])


def _keys_pass(
    k: Kernel,
    about: Attended,
    head: int,
    queries: Pair,
    keys: Pair,
    rows: Pair,
    out: Pair,
    block: int,
    chunk: int,
    piece: int,
) -> None:
    everything = slice(0, about.length)
    q, given = (
        k.share(t[about.rows(head, everything), :], n, in_gsm(k, about))
        for t, n in zip(queries, SHARED, strict=True)
    )

    def work(part: slice) -> float:
        return about.length - (part.start if about.causal else 0)

    for core, some in k.balanced(k.tiles(about.length, block), work):
        here = about.rows(head, some)
        k_lanes, v_lanes = (
            turned(core, t[here, :], n) for t, n in zip(keys, ("k", "v"), strict=True)
        )
        totals = _zeros(core, k_lanes.shape, ("dk", "dv"))
        first = some.start // chunk * chunk if about.causal else 0
        for part in k.tiles(about.length, chunk):
            if part.start < first:
                continue
            at = about.rows(head, part)
            lse, dot = (_column(core, t, at, piece, n) for t, n in zip(rows, "ld", strict=True))
            scores = products(core, q[part], k_lanes, "s", piece)
            slopes = products(core, given[part], v_lanes, "dp", piece)
            p, ds = _softmax(core, scores, slopes, lse, dot, about, _keys_mask(about, part, some))
            add_products(core, totals[1], given[part], p, piece)
            add_products(core, totals[0], q[part], ds, piece)
        for total, target in zip(totals, out, strict=True):
            _store(core, total, target[here, :])


def _queries_pass(
    k: Kernel,
    about: Attended,
    head: int,
    queries: Pair,
    keys: Pair,
    rows: Pair,
    out: Matrix,
    block: int,
    chunk: int,
    piece: int,
) -> None:
    everything = slice(0, about.length)
    key, value = (
        k.share(t[about.rows(head, everything), :], n, in_gsm(k, about))
        for t, n in zip(keys, SHARED, strict=True)
    )

    def work(part: slice) -> float:
        return part.stop if about.causal else about.length

    for core, some in k.balanced(list(reversed(k.tiles(about.length, block))), work):
        here = about.rows(head, some)
        q_lanes, g_lanes = (
            turned(core, t[here, :], n) for t, n in zip(queries, ("k", "v"), strict=True)
        )
        lse, dot = (_row(core, t, here, piece, name) for t, name in zip(rows, "ld", strict=True))
        (total,) = _zeros(core, q_lanes.shape, ("dk",))
        for part in k.tiles(some.stop if about.causal else about.length, chunk):
            scores = products(core, key[part], q_lanes, "s", piece)
            slopes = products(core, value[part], g_lanes, "dp", piece)
            mask = _queries_mask(about, part, some)
            _, ds = _softmax(core, scores, slopes, lse, dot, about, mask)
            add_products(core, total, key[part], ds, piece)
        _store(core, total, out[here, :])


def _softmax(
    core: Core,
    scores: Tile,
    slopes: Tile,
    lse: Tile,
    dot: Tile,
    about: Attended,
    mask: Callable[[Array], Array],
) -> tuple[Tile, Tile]:
    """P and dS, of FP16."""
    scale = np.float32(about.scale)
    p = core.tile(*scores.shape, "f2", "p")
    core.map(p, lambda s, lse: np.exp(mask(s * scale) - lse), scores, lse, slots=EXP_SLOTS + 2)
    ds = core.tile(*scores.shape, "f2", "ds")
    core.map(ds, lambda p, dp, d: p * (dp - d) * scale, p, slopes, dot, slots=5)
    return p, ds


def _keys_mask(about: Attended, queries: slice, keys: slice) -> Callable[[Array], Array]:
    return lambda scores: about.masked(scores.T, keys, queries).T


def _queries_mask(about: Attended, keys: slice, queries: slice) -> Callable[[Array], Array]:
    return lambda scores: about.masked(scores, keys, queries)


def _zeros(core: Core, shape: tuple[int, int], names: tuple[str, ...]) -> list[Tile]:
    totals = [core.tile(*shape, "f4", name) for name in names]
    for total in totals:
        core.fill(total, 0.0)
    return totals


def _column(core: Core, source: Matrix, rows: slice, unit: int, name: str) -> Tile:
    """A column of DDR in AM, in the parts in which it was stored."""
    column = core.tile(rows.stop - rows.start, 1, "f4", f"{name} column")
    for part, stored in _stored(source, rows, unit):
        core.map(column[part], lambda x: x, core.load(stored, AM, name), slots=1)
    return column


def _row(core: Core, source: Matrix, rows: slice, unit: int, name: str) -> Tile:
    """The same as a row."""
    row = core.tile(1, rows.stop - rows.start, "f4", f"{name} row")
    for part, stored in _stored(source, rows, unit):
        core.turn(row[:, part], core.load(stored, AM, name))
    return row


def _stored(source: Matrix, rows: slice, unit: int) -> Iterator[tuple[slice, Tile]]:
    for part in pieces(rows.stop - rows.start, unit):
        yield part, source[slice(rows.start + part.start, rows.start + part.stop), :]


def _store(core: Core, total: Tile, target: Tile) -> None:
    half = core.tile(*total.shape, "f2", "half")
    core.map(half, lambda x: x, total, slots=2)
    out = core.tile(half.shape[1], half.shape[0], "f2", "stored")
    core.turn(out, half)
    core.store(out, target)
