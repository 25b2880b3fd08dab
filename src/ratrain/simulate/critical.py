"""The critical path: the chain of ops, each waiting for the one before, that ends a step; of a
program that spells out several, a period of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.program.kind import Kind
from ratrain.program.table import Table
from ratrain.program.units import Ints
from ratrain.simulate.costs import Floats
from ratrain.simulate.engine import Run
from ratrain.simulate.result import Window


@dataclass(frozen=True)
class CriticalPart:
    """Consecutive ops of the path that are of one kind and on one rank."""

    rank: int
    kind: str
    first: str  # the first op's word
    last: str
    ops: int
    time_s: float


def critical_path(table: Table, run: Run, window: Window) -> tuple[CriticalPart, ...]:
    """The path that ends at the steady period's boundary, back to the boundary before it."""
    op, time_s = _path(table, run, window)
    changes = np.flatnonzero(np.diff(_rank_and_kind(table, op))) + 1
    return tuple(
        CriticalPart(
            rank=int(table.rank[part[0]]),
            kind=Kind(int(table.kind[part[0]])).name,
            first=table.word(int(part[0])),
            last=table.word(int(part[-1])),
            ops=len(part),
            time_s=float(spent.sum()),
        )
        for part, spent in zip(np.split(op, changes), np.split(time_s, changes), strict=True)
    )


def critical_times(table: Table, run: Run, window: Window) -> dict[tuple[int, str], float]:
    """The same path's time, summed by rank and kind."""
    op, time_s = _path(table, run, window)
    keys, which = np.unique(_rank_and_kind(table, op), return_inverse=True)
    sums = np.bincount(which, weights=time_s)
    kinds = len(Kind)
    return {
        (int(key) // kinds, Kind(int(key) % kinds).name): float(sum_s)
        for key, sum_s in zip(keys, sums, strict=True)
    }


def _rank_and_kind(table: Table, op: Ints) -> Ints:
    return table.rank[op] * len(Kind) + table.kind[op]


def _path(table: Table, run: Run, window: Window) -> tuple[Ints, Floats]:
    """The path's ops in order, and how much of the period each takes."""
    n = len(table)
    ends = np.flatnonzero(table.where("adds_gradient")) + window.period * n
    node = int(ends[run.end_s[ends].argmax()])
    end_s = float(run.end_s[node])
    began_s = end_s - window.length_s
    path: list[int] = []
    while node >= 0 and end_s > began_s:
        path.append(node)
        end_s = float(run.start_s[node])
        node = int(run.cause[node])
    nodes = np.array(path[::-1], dtype=np.int64)
    op = nodes % n
    begins_s = np.maximum(run.start_s[nodes], began_s)
    return op, np.append(begins_s[1:], begins_s[0] + window.length_s) - begins_s
