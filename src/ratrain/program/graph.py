"""The waiting graph of a program, and a smaller one that says the same of when ops can run.

Most waiting is of a compute op for the one before it. An op that waits for no other lane, and that
no other lane waits for, starts when the op before it has ended and says nothing new. So the
`Chains` of a program keep the other ops alone: those at the ends of lanes, those with partners, and
those with an edge between lanes that is not implied by edges of earlier or later ops on them.
They can all run if and only if all ops of the program can, and the bounds on how far lanes can
drift apart (`walk.Drift`) are the same. A lane of one layer's ops after the other is thus as cheap
to prove as that of one layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.program.edges import EdgeList, Edges
from ratrain.program.kind import Lane
from ratrain.program.units import Bools, Ints


@dataclass(frozen=True)
class Waiting:
    """What a program's table says of its ops and of their waiting."""

    edges: Edges
    group: Ints
    rank: Ints
    lane: Ints
    ranks: int

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True)
class Pairs:
    """`target` waits for `source`."""

    source: Ints
    target: Ints


@dataclass(frozen=True)
class Graph:
    """Nodes that wait for each other, in one step (`inside`) and for the step before (`across`)."""

    inside: Pairs
    across: Pairs
    group: Ints  # of nodes that happen together; -1: alone
    owner: Ints  # the rank of whose compute lane a node is; -1: of none
    place: Ints  # the place of a node's op in its lane
    lengths: Ints  # ops of each rank's compute lane

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True)
class Chains:
    """The smaller graph of a program, and where the program's ops stand in it."""

    graph: Graph
    op: Ints  # of each node
    at: Ints  # for each op the node that it is, or the last before it on its lane
    from_: Ints  # for each op the node that it is, or the first behind it on its lane
    owner: Ints  # for each op the rank of whose compute lane it is; -1: of none
    place: Ints  # for each op its place in its lane


def graph_of(ops: Waiting) -> Graph:
    """The whole waiting graph of a program."""
    lane = _lanes(ops)
    place = np.arange(len(ops)) - np.searchsorted(lane, lane)
    compute = ops.lane == Lane.COMPUTE
    return Graph(
        Pairs(ops.edges.inside.source, ops.edges.inside.target),
        Pairs(ops.edges.across.source, ops.edges.across.target),
        ops.group,
        np.where(compute, ops.rank, -1),
        place,
        np.bincount(ops.rank[compute], minlength=ops.ranks).astype(np.int64),
    )


def chains_of(ops: Waiting) -> Chains:
    """The `Chains` of a program."""
    n, lane = len(ops), _lanes(ops)
    inside = _between_lanes(ops.edges.inside, lane, n, behind=True)
    across = _between_lanes(ops.edges.across, lane, n, behind=False)
    starts = np.flatnonzero(np.diff(lane, prepend=-1))
    ends = np.append(starts[1:], n) - 1
    kept = np.zeros(n, bool)
    for seen in (starts, ends, inside.source, inside.target, across.source, across.target):
        kept[seen] = True
    kept |= _near_partners(ops.group)
    op = np.flatnonzero(kept)
    at = np.cumsum(kept) - 1
    neighbours = np.flatnonzero(np.diff(lane[op]) == 0)
    whole = graph_of(ops)
    graph = Graph(
        Pairs(np.r_[neighbours, at[inside.source]], np.r_[neighbours + 1, at[inside.target]]),
        Pairs(np.r_[at[ends], at[across.source]], np.r_[at[starts], at[across.target]]),
        ops.group[op],
        whole.owner[op],
        whole.place[op],
        whole.lengths,
    )
    return Chains(graph, op, at, at + ~kept, whole.owner, whole.place)


def _lanes(ops: Waiting) -> Ints:
    """A number for each op's lane; ops are in the order of these."""
    return ops.rank * len(Lane) + ops.lane


def _near_partners(group: Ints) -> Bools:
    """Ops that have partners, and their neighbours: an op with partners hands on what bounds them
    all, so nothing may be left out right before or behind it."""
    together = group >= 0
    return together | np.r_[together[1:], False] | np.r_[False, together[:-1]]


def _between_lanes(edges: EdgeList, lane: Ints, n: int, *, behind: bool) -> Pairs:
    """Edges that lanes do not imply. Of an op's followers on one lane the first is enough, and of
    those on one lane that it waits for, the last. `behind` says that an edge back to an earlier op
    of the same lane counts: it closes a circle."""
    source, target = edges.source, edges.target
    apart = lane[source] != lane[target]
    if behind:
        apart |= source > target
    source, target = source[apart], target[apart]
    key = np.sort(source * n + target)
    source, target = np.divmod(key, n)
    first = _changes(source, lane[target])
    source, target = source[first], target[first]
    key = np.sort(target * n + source)
    target, source = np.divmod(key, n)
    last = np.r_[_changes(target, lane[source])[1:], True][: len(key)]
    return Pairs(source[last], target[last])


def _changes(these: Ints, other: Ints) -> Bools:
    """Where either column differs from the row before."""
    return np.r_[True, (np.diff(these) != 0) | (np.diff(other) != 0)][: len(these)]
