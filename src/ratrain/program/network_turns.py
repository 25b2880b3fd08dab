"""One order of all tensors that ranks send each other, for networks that need one.

A communicator of a device takes what it is given in turn, and two ranks that give it the same two
messages in different turns wait for each other. So where a program's header says `network_in_turn`,
the network ops of a rank wait for each other, on whatever lanes they stand: messages, collectives
of a unit's holders, sums of tied copies. Sums of a tensor group do not: those inside compute could
not, and their network needs no order.

The order follows from the program: that of their beginnings on a clock that counts ops of compute
alone. It is one order of all ranks, in which ops that happen together stand side by side, and each
op behind all that it waits for; a rank's turns are its own ops of it. So whatever could run can
run so, step by step, and the verifier walks the program with these turns in it all the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ratrain.program.edges import LANE_EDGE, EdgeList, Edges
from ratrain.program.graph import Chains, Waiting, chains_of
from ratrain.program.kind import kinds_where
from ratrain.program.units import Bools, Ints
from ratrain.program.walk import dense_groups, walk

_COMPUTES, _OTHER = 8, 1
"""What ops last on that clock: those of compute are long, whatever is sent is sent beside them."""


def takes_turns(kind: Ints) -> Bools:
    """Ops that a rank does one after the other, by their kinds."""
    return np.logical_or.reduce(
        [kinds_where(what)[kind] for what in ("is_message", "is_collective", "is_tie")]
    )


def in_turn(ops: Waiting, kind: Ints) -> Edges:
    """The waiting of a program's ops, and of each rank's network ops for the one before. Of ops
    that cannot run, what it was: the verifier says what they wait for."""
    chains, row = chains_of(ops), np.flatnonzero(takes_turns(kind))
    walked = walk(chains.graph)
    if len(walked.stuck) or not len(row):
        return ops.edges
    begins, turn = _clocked(chains, walked.order)
    node = chains.at[row]
    length = chains.place[row] - chains.graph.place[node]
    order = np.lexsort((length, turn[node], begins[node] + length * _OTHER, ops.rank[row]))
    return _with_turns(ops, row[order])


def _clocked(chains: Chains, order: Ints) -> tuple[Ints, Ints]:
    """When the chains' nodes begin in a first step, and their places in a walk of it."""
    graph, n = chains.graph, len(chains.graph)
    first = order[order < n]
    turn = np.empty(n, dtype=np.int64)
    turn[first] = np.arange(n)
    lasts = np.where(graph.owner >= 0, _COMPUTES, _OTHER)
    source, target = graph.inside.source, graph.inside.target
    ahead = graph.place[target] - graph.place[source]
    neighbours = (target == source + 1) & (graph.place[target] > 0)  # on a lane
    delay = lasts[source] * np.where(neighbours, ahead, 1)
    followers = [list[tuple[int, int]]() for _ in range(n)]
    waits: list[tuple[int, int, int]] = np.stack([source, target, delay], axis=1).tolist()
    for one, other, after in waits:
        followers[one].append((other, after))
    group: list[int] = dense_groups(graph.group)[0].tolist()
    begins, together = [0] * n, list[int]()
    nodes: list[int] = first.tolist()
    for at, node in enumerate(nodes):
        together.append(node)
        if group[node] >= 0 and at + 1 < n and group[nodes[at + 1]] == group[node]:
            continue
        begun = max(begins[one] for one in together)
        for one in together:
            begins[one] = begun
            for other, after in followers[one]:
                begins[other] = max(begins[other], begun + after)
        together.clear()
    return np.array(begins, dtype=np.int64), turn


def _with_turns(ops: Waiting, row: Ints) -> Edges:
    """The waiting of ops, and of these, in the order of ranks and turns."""
    same = ops.rank[row[1:]] == ops.rank[row[:-1]]
    apart = ops.lane[row[1:]] != ops.lane[row[:-1]]
    inside, across = ops.edges.inside, ops.edges.across
    first, last = np.append(True, ~same), np.append(~same, True)
    again = ops.lane[row[first]] != ops.lane[row[last]]
    return replace(
        ops.edges,
        inside=_more(inside, row[:-1][same & apart], row[1:][same & apart]),
        across=_more(across, row[last][again], row[first][again]),
    )


def _more(edges: EdgeList, source: Ints, target: Ints) -> EdgeList:
    return EdgeList(
        np.r_[edges.source, source],
        np.r_[edges.target, target],
        np.r_[edges.kind, np.full(len(source), LANE_EDGE, dtype=np.int8)],
        np.r_[edges.state, np.full(len(source), -1, dtype=np.int64)],
    )
