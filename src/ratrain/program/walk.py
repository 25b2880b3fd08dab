"""Walks a program's waiting graph: what can run at all, and how far apart ops can drift.

Two steps are walked, so that states carried from one step to the next are seen. A node is
`step * ops + op`. The compiled form stands in walk.c; here is its twin, for machines without a C
compiler and as the reference of its tests.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ratrain.compiled import address, c_long, library
from ratrain.program.graph import Graph, Waiting, graph_of
from ratrain.program.units import Ints

STEPS = 2


class Walked(Protocol):
    """A program's table, as far as it is walked."""

    @property
    def waiting(self) -> Waiting: ...


@dataclass(frozen=True)
class Walk:
    """Nodes in an order in which they can run, and those that never can (deadlock)."""

    order: Ints
    stuck: Ints


WIDTH = 16
"""Ranks that one call of `drift` takes at once; the same number stands in walk.c."""


@dataclass(frozen=True)
class Drift:
    """A row for each node, a column for each rank asked for: `early` of the rank's compute ops
    must have ended before the node starts; the rank's compute op `late` cannot start before the
    node has ended."""

    early: npt.NDArray[np.int32]
    late: npt.NDArray[np.int32]


def walk(program: Walked | Graph, *, compiled: bool = True) -> Walk:
    """The `Walk` of two steps of a program, or of a waiting graph."""
    graph = _graph(program)
    total = len(graph) * STEPS
    group, sizes = dense_groups(graph.group)
    c = library("program", "walk_c") if compiled else None
    order = np.empty(total, dtype=np.int64)
    if c is None:
        reached = _walk(graph, group, sizes, order)
    else:
        c.ratrain_walk.restype = ctypes.c_int64
        reached = c.ratrain_walk(
            *_sizes(graph),
            *_edges(graph),
            c_long(len(sizes)),
            address(group),
            address(sizes),
            address(order),
        )
        if reached < 0:
            raise MemoryError("walking the program")
    stuck = np.ones(total, bool)
    stuck[order[:reached]] = False
    return Walk(order[:reached], np.flatnonzero(stuck))


def drift(program: Walked | Graph, order: Ints, ranks: range, *, compiled: bool = True) -> Drift:
    """The `Drift` of every node against the compute lanes of at most WIDTH ranks. `order` is a
    complete walk."""
    graph = _graph(program)
    here = (graph.owner >= ranks.start) & (graph.owner < ranks.stop)
    owner = np.where(here, graph.owner - ranks.start, -1)
    length = np.zeros(WIDTH, dtype=np.int64)
    length[: len(ranks)] = graph.lengths[ranks.start : ranks.stop]
    group, _ = dense_groups(graph.group)
    early = np.empty((len(order), WIDTH), dtype=np.int32)
    late = np.empty((len(order), WIDTH), dtype=np.int32)
    c = library("program", "walk_c") if compiled else None
    if c is None:
        _drift(graph, group, order, owner, length, early, late)
        return Drift(early, late)
    if c.ratrain_drift_width() != WIDTH:
        raise AssertionError("walk.c and walk.py disagree; install again")
    c.ratrain_drift.restype = ctypes.c_int64
    arrays = (
        address(group),
        address(order),
        address(owner),
        address(graph.place),
        address(length),
        address(early),
        address(late),
    )
    if c.ratrain_drift(*_sizes(graph), *_edges(graph), *arrays) < 0:
        raise MemoryError("bounding the memory of the program")
    return Drift(early, late)


def dense_groups(group: Ints) -> tuple[Ints, Ints]:
    """Groups numbered 0, 1, ... (-1: alone), and how many members each has."""
    together = np.flatnonzero(group >= 0)
    dense = np.full(len(group), -1, dtype=np.int64)
    _, inverse, sizes = np.unique(group[together], return_inverse=True, return_counts=True)
    dense[together] = inverse
    return dense, sizes.astype(np.int64)


def _graph(program: Walked | Graph) -> Graph:
    return program if isinstance(program, Graph) else graph_of(program.waiting)


# ---- the call into C --------------------------------------------------------------------


def _sizes(graph: Graph) -> tuple[ctypes.c_int64, ctypes.c_int64]:
    return c_long(len(graph)), c_long(STEPS)


def _edges(graph: Graph) -> tuple[Any, ...]:
    inside, across = graph.inside, graph.across
    return (
        *(c_long(len(inside.source)), address(inside.source), address(inside.target)),
        *(c_long(len(across.source)), address(across.source), address(across.target)),
    )


# ---- the same in Python -----------------------------------------------------------------


def _followers(graph: Graph) -> list[list[int]]:
    """For each node, the nodes that wait for it."""
    n = len(graph)
    followers: list[list[int]] = [[] for _ in range(n * STEPS)]
    for edges, shift in ((graph.inside, 0), (graph.across, 1)):
        sources: list[int] = edges.source.tolist()
        targets: list[int] = edges.target.tolist()
        for step in range(STEPS - shift):
            for source, target in zip(sources, targets, strict=True):
                followers[step * n + source].append((step + shift) * n + target)
    return followers


def _walk(graph: Graph, group: Ints, sizes: Ints, order: Ints) -> int:
    n = len(graph)
    followers = _followers(graph)
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
    graph: Graph,
    group: Ints,
    order: Ints,
    owner: Ints,
    length: Ints,
    early: npt.NDArray[np.int32],
    late: npt.NDArray[np.int32],
) -> None:
    n = len(graph)
    followers = _followers(graph)
    early[:], late[:] = 0, length * STEPS
    together: list[list[int]] = []
    for node in order.tolist():
        number = int(group[node % n])
        last = together[-1][0] if together else -1
        if number >= 0 and last >= 0 and group[last % n] == number and last // n == node // n:
            together[-1].append(node)
        else:
            together.append([node])

    def own(node: int, bounds: npt.NDArray[np.int32], ended: int) -> npt.NDArray[np.int32]:
        """The bounds that a node hands on: its own place, for its own rank."""
        column = owner[node % n]
        if column < 0:
            return bounds
        handed = bounds.copy()
        handed[column] = node // n * length[column] + graph.place[node % n] + ended
        return handed

    for nodes in together:
        early[nodes] = early[nodes].max(axis=0)
        for node in nodes:
            handed = own(node, early[node], 1)
            for target in followers[node]:
                np.maximum(early[target], handed, out=early[target])
    for nodes in reversed(together):
        for node in nodes:
            for target in followers[node]:
                np.minimum(late[node], own(target, late[target], 0), out=late[node])
        late[nodes] = late[nodes].min(axis=0)
