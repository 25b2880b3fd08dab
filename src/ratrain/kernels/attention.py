"""Attention forward as a tile program: queries on the lanes.

S^T = K Q^T and O^T = V^T P^T are both products with scalars in SM (K and V, V read transposed) and
vectors in AM, so maxima and sums of softmax go down the lanes, and P never leaves AM. Heads' K and
V lie in GSM for all cores; blocks of queries are dealt to the cores by their work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ratrain.errors import ProgramError
from ratrain.kernels.build import Core, Kernel
from ratrain.kernels.machine import AM, SM
from ratrain.kernels.tiles import Array, Tile

EXP_SLOTS = 12
"""Instructions of an exponential of 32 FP32 values: reduction, polynomial, exponent; assumed."""
LOWEST = -1e30


@dataclass(frozen=True)
class Attended:
    """What the kernels of attention are about."""

    heads: int
    length: int
    width: int
    causal: bool

    @property
    def scale(self) -> float:
        return self.width**-0.5

    def rows(self, head: int, part: slice) -> slice:
        """Positions of a head, as rows of a tensor of all heads."""
        return slice(head * self.length + part.start, head * self.length + part.stop)

    def masked(self, scores: Array, keys: slice, queries: slice) -> Array:
        """Scores (keys x queries) without those of later keys."""
        if not self.causal or keys.stop - 1 <= queries.start:
            return scores
        later = np.arange(keys.start, keys.stop)[:, None] > np.arange(queries.start, queries.stop)
        return np.where(later, np.float32(LOWEST), scores)


def forward(
    k: Kernel,
    heads: int,
    length: int,
    width: int,
    causal: int,
    block: int = 192,
    chunk: int = 128,
    piece: int = 64,
) -> None:
    """O = softmax(Q K^T / sqrt(width)) V, and the logarithm of each row's sum. `block` queries of
    a core at once; keys in chunks, and a chunk in pieces that SM holds."""
    about = Attended(heads, length, width, bool(causal))
    rows = heads * length
    q, key, value = (k.input(name, rows, width, "f2") for name in ("q", "k", "v"))
    out = k.output("o", rows, width, "f2")
    sums = k.output("lse", rows, 1, "f4")
    shared = in_gsm(k, about)
    for head in range(heads):
        keys = k.share(key[about.rows(head, slice(0, length)), :], "k", shared)
        values = k.share(value[about.rows(head, slice(0, length)), :], "v", shared)
        blocks = reversed(k.tiles(length, block))
        for core, queries in k.balanced(list(blocks), lambda part: _seen(about, part)):
            here = about.rows(head, queries)
            q_turned = turned(core, q[here, :], "q")
            total, highest, weight = _start(core, q_turned)
            for some in k.tiles(_seen(about, queries), chunk):
                scores = products(core, keys[some], q_turned, "s", piece)
                new = core.tile(*highest.shape, "f4", "highest", 2)
                _highest(core, new, highest, scores, about, some, queries)
                p = core.tile(*scores.shape, "f2", "p")
                _weights(core, p, scores, new, about, some, queries)
                faded = core.tile(*highest.shape, "f4", "faded")
                core.map(faded, lambda old, now: np.exp(old - now), highest, new, slots=EXP_SLOTS)
                core.reduce(
                    weight, lambda w, a, p: w * a + p.sum(0, keepdims=True), weight, faded, p
                )
                core.map(total, lambda o, a: o * a, total, faded, slots=1)
                add_products(core, total, values[some], p, piece)
                highest = new
            _finish(core, total, highest, weight, out[here, :], sums[here, :])


def in_gsm(k: Kernel, about: Attended) -> int:
    """Heads of which two tensors fit into GSM at once; at least one, which the proof may refuse."""
    return max(1, k.machine.gsm_bytes // (about.length * about.width * 2 * 2))


def turned(core: Core, source: Tile, name: str) -> Tile:
    """A tile loaded to AM, and transposed there."""
    tile = core.load(source, AM, "as loaded", 1)
    out = core.tile(tile.shape[1], tile.shape[0], tile.dtype.str[1:], name)
    core.turn(out, tile)
    return out


def pieces(rows: int, size: int) -> Iterator[slice]:
    if size < 1:
        raise ProgramError(f"a piece of {size} rows", fix="take at least 1")
    return (slice(at, min(at + size, rows)) for at in range(0, rows, size))


def products(core: Core, scalars: Tile, lanes: Tile, name: str, piece: int) -> Tile:
    """scalars lanes, with the scalars going from GSM to SM piece by piece. Summed in FP16, as the
    sum over the width of a head is one block of FP16 sums: in FP32 it would be the same number."""
    total = core.tile(scalars.shape[0], lanes.shape[1], "f2", name)
    core.fill(total, 0.0)
    for part in pieces(scalars.shape[0], piece):
        in_sm = core.load(scalars[part], SM, "scalars", 2)
        core.mm(total[part], in_sm, lanes)
    return total


def add_products(core: Core, total: Tile, scalars: Tile, lanes: Tile, piece: int) -> None:
    """total += scalars^T lanes, with some columns of the scalars at a time: so all their rows are
    summed before FP32 sums are touched."""
    for part in pieces(scalars.shape[1], piece):
        in_sm = core.load(scalars[:, part], SM, "values", 2)
        core.mm(total[part], in_sm.T, lanes, lanes.shape[0])


def _seen(about: Attended, queries: slice) -> int:
    """Keys that a block of queries attends to."""
    return queries.stop if about.causal else about.length


def _start(core: Core, q_turned: Tile) -> tuple[Tile, Tile, Tile]:
    width, count = q_turned.shape
    total = core.tile(width, count, "f4", "total")
    highest = core.tile(1, count, "f4", "highest", 2)
    weight = core.tile(1, count, "f4", "weight")
    for tile, value in ((total, 0.0), (highest, LOWEST), (weight, 0.0)):
        core.fill(tile, value)
    return total, highest, weight


def _highest(
    core: Core, new: Tile, old: Tile, scores: Tile, about: Attended, keys: slice, queries: slice
) -> None:
    def highest(before: Array, scores: Array) -> Array:
        here = about.masked(scores * np.float32(about.scale), keys, queries)
        return np.maximum(before, here.max(0, keepdims=True))

    core.reduce(new, highest, old, scores, slots=2)


def _weights(
    core: Core, p: Tile, scores: Tile, highest: Tile, about: Attended, keys: slice, queries: slice
) -> None:
    def weights(scores: Array, highest: Array) -> Array:
        here = about.masked(scores * np.float32(about.scale), keys, queries)
        return np.exp(here - highest)

    core.map(p, weights, scores, highest, slots=EXP_SLOTS + 1)


def _finish(core: Core, total: Tile, highest: Tile, weight: Tile, out: Tile, sums: Tile) -> None:
    half = core.tile(*total.shape, "f2", "half")
    core.map(half, lambda o, w: o / w, total, weight, slots=5)
    o_tile = core.tile(half.shape[1], half.shape[0], "f2", "o", 2)
    core.turn(o_tile, half)
    core.store(o_tile, out)
    logs = core.tile(*weight.shape, "f4", "logs")
    core.map(logs, lambda m, w: m + np.log(w), highest, weight, slots=EXP_SLOTS)
    column = core.tile(logs.shape[1], logs.shape[0], "f4", "lse", 2)
    core.turn(column, logs)
    core.store(column, sums)
