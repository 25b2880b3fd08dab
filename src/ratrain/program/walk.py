"""Walks a program's waiting graph: what can run at all, and how far apart ops can drift.

Two steps are walked, so that states carried from one step to the next are seen. A node is
`step * ops + op`. The compiled form stands in walk.c; here is its twin, for machines without a C
compiler and as the reference of its tests.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ratrain.compiled import library
from ratrain.program.units import Ints

if TYPE_CHECKING:
    from ratrain.program.table import Table

STEPS = 2


@dataclass(frozen=True)
class Walk:
    """Nodes in an order in which they can run, and those that never can (deadlock)."""

    order: Ints
    stuck: Ints


@dataclass(frozen=True)
class Drift:
    """For one rank and each node: `early` of the rank's compute ops must have ended before the
    node starts; the rank's compute op `late` cannot start before the node has ended."""

    early: npt.NDArray[np.int32]
    late: npt.NDArray[np.int32]


def walk(table: Table, *, compiled: bool = True) -> Walk:
    """The `Walk` of two steps of a program."""
    total = len(table) * STEPS
    group, sizes = dense_groups(table)
    c = library("program", "walk_c") if compiled else None
    order = np.empty(total, dtype=np.int64)
    if c is None:
        reached = _walk(table, group, sizes, order)
    else:
        c.ratrain_walk.restype = ctypes.c_int64
        reached = c.ratrain_walk(
            *_sizes(table), *_edges(table), _long(len(sizes)), _at(group), _at(sizes), _at(order)
        )
        if reached < 0:
            raise MemoryError("walking the program")
    stuck = np.ones(total, bool)
    stuck[order[:reached]] = False
    return Walk(order[:reached], np.flatnonzero(stuck))


def drift(table: Table, order: Ints, rank: int, *, compiled: bool = True) -> Drift:
    """The `Drift` of every node against one rank's compute lane. `order` is a complete walk."""
    place = np.full(len(table), -1, dtype=np.int64)
    mine = np.flatnonzero((table.rank == rank) & (table.lane == 0))
    place[mine] = np.arange(len(mine))
    group, _ = dense_groups(table)
    early = np.empty(len(order), dtype=np.int32)
    late = np.empty(len(order), dtype=np.int32)
    c = library("program", "walk_c") if compiled else None
    if c is None:
        _drift(table, group, order, place, len(mine), early, late)
        return Drift(early, late)
    c.ratrain_drift.restype = ctypes.c_int64
    arrays = (_at(group), _at(order), _at(place), _long(len(mine)), _at(early), _at(late))
    if c.ratrain_drift(*_sizes(table), *_edges(table), *arrays) < 0:
        raise MemoryError("bounding the memory of the program")
    return Drift(early, late)


def dense_groups(table: Table) -> tuple[Ints, Ints]:
    """Groups numbered 0, 1, ... (-1: alone), and how many members each has."""
    together = np.flatnonzero(table.group >= 0)
    group = np.full(len(table), -1, dtype=np.int64)
    _, inverse, sizes = np.unique(table.group[together], return_inverse=True, return_counts=True)
    group[together] = inverse
    return group, sizes.astype(np.int64)


# ---- the call into C --------------------------------------------------------------------


def _long(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def _at(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def _sizes(table: Table) -> tuple[ctypes.c_int64, ctypes.c_int64]:
    return _long(len(table)), _long(STEPS)


def _edges(table: Table) -> tuple[Any, ...]:
    inside, across = table.edges.inside, table.edges.across
    return (
        *(_long(len(inside.source)), _at(inside.source), _at(inside.target)),
        *(_long(len(across.source)), _at(across.source), _at(across.target)),
    )


# ---- the same in Python -----------------------------------------------------------------


def _followers(table: Table) -> list[list[int]]:
    """For each node, the nodes that wait for it."""
    n = len(table)
    found: list[list[int]] = [[] for _ in range(n * STEPS)]
    for edges, shift in ((table.edges.inside, 0), (table.edges.across, 1)):
        sources: list[int] = edges.source.tolist()
        targets: list[int] = edges.target.tolist()
        for step in range(STEPS - shift):
            for source, target in zip(sources, targets, strict=True):
                found[step * n + source].append((step + shift) * n + target)
    return found


def _walk(table: Table, group: Ints, sizes: Ints, order: Ints) -> int:
    n = len(table)
    followers = _followers(table)
    waits = [0] * len(followers)
    for targets in followers:
        for target in targets:
            waits[target] += 1
    ready_of: dict[tuple[int, int], list[int]] = {}
    done: list[int] = []

    def ready(node: int) -> None:
        number = int(group[node % n])
        if number < 0:
            done.append(node)
            return
        together = ready_of.setdefault((node // n, number), [])
        together.append(node)
        if len(together) == sizes[number]:
            done.extend(reversed(together))

    for node, count in enumerate(waits):
        if not count:
            ready(node)
    for node in done:
        for target in followers[node]:
            waits[target] -= 1
            if not waits[target]:
                ready(target)
    order[: len(done)] = done
    return len(done)


def _drift(
    table: Table,
    group: Ints,
    order: Ints,
    place: Ints,
    length: int,
    early: npt.NDArray[np.int32],
    late: npt.NDArray[np.int32],
) -> None:
    n = len(table)
    followers = _followers(table)
    early[:], late[:] = 0, length * STEPS
    together: list[list[int]] = []
    for node in order.tolist():
        number = int(group[node % n])
        last = together[-1][0] if together else -1
        if number >= 0 and last >= 0 and group[last % n] == number and last // n == node // n:
            together[-1].append(node)
        else:
            together.append([node])

    def own(node: int) -> int:
        return node // n * length + int(place[node % n]) if place[node % n] >= 0 else -1

    for nodes in together:
        early[nodes] = early[nodes].max()
        for node in nodes:
            passed = own(node) + 1 if own(node) >= 0 else early[node]
            for target in followers[node]:
                early[target] = max(early[target], passed)
    for nodes in reversed(together):
        bounds = [
            own(target) if own(target) >= 0 else int(late[target])
            for node in nodes
            for target in followers[node]
        ]
        late[nodes] = min(bounds, default=length * STEPS)
