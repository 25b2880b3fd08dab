"""Fewer nodes and edges for a clock that times orders: what every order has in common is left out.

In each order a stage takes its micro-batches in ascending order, and forward comes before backward.
So of all ops of a stage that one op waits for the last says it, whatever the order; and ops of a
piece of compute between which nothing else waits are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ratrain.program.graph import Pairs
from ratrain.program.kind import Kind
from ratrain.program.plain import Step
from ratrain.program.table import Table
from ratrain.program.units import Bools, Ints
from ratrain.simulate.costs import Floats, OpCosts
from ratrain.simulate.engine import Nodes


@dataclass(frozen=True)
class Turns:
    """Of each op of a piece what no order changes: within `chain` (a stage on a rank, or a unit;
    -1: no piece's) an op comes after all whose `part` (forward, backward, weight gradient) and
    micro-batch are no later than its own."""

    chain: Ints
    part: Ints
    micro_batch: Ints


_PARTS = {Kind.F: 0, Kind.B: 1, Kind.I: 1, Kind.W: 2}


def turns_of(table: Table, rows: Sequence[Mapping[Step, list[int]]]) -> Turns:
    chain, part, micro_batch = np.full((3, len(table)), -1, dtype=np.int64)
    numbers = 1 + max(number for of_rank in rows for _, number, _ in of_rank)
    for rank, of_rank in enumerate(rows):
        for (kind, number, m), of_piece in of_rank.items():
            chain[of_piece], part[of_piece] = rank * numbers + number, _PARTS[kind]
            micro_batch[of_piece] = m
    return Turns(chain, part, micro_batch)


def needed(edges: Pairs, turns: Turns) -> Pairs:
    """Edges that no other says: of those from a chain to one op the last ones, and of those from
    one op to a chain the first ones."""
    last = _outermost(edges.source, edges.target, turns, 1)
    source, target = edges.source[last], edges.target[last]
    first = _outermost(target, source, turns, -1)
    return Pairs(source[first], target[first])


def _outermost(ends: Ints, others: Ints, turns: Turns, way: int) -> Bools:
    """Of edges between a chain and one op those whose end in the chain is the last one (1) or the
    first (-1), whatever the order; and edges of no chain."""
    chain = turns.chain[ends]
    kept = chain < 0
    rows = np.flatnonzero(~kept)
    _, group = np.unique(np.stack([chain[rows], others[rows]], axis=1), axis=0, return_inverse=True)
    part, turn = turns.part[ends[rows]], way * turns.micro_batch[ends[rows]]
    groups = int(group.max(initial=-1)) + 1
    furthest = np.full((groups, len(_PARTS)), np.iinfo(np.int64).min)
    np.maximum.at(furthest, (group, part), turn)
    outer = turn == furthest[group, part]
    for further in range(3):
        beyond = (further - part) * way > 0
        outer &= ~beyond | (turn > furthest[group, further])
    inner = np.full((groups, len(_PARTS)), np.iinfo(np.int64).min)
    chosen = np.flatnonzero(outer)
    np.maximum.at(inner, (group[chosen], part[chosen]), way * ends[rows[chosen]])
    outer &= way * ends[rows] == inner[group, part]
    kept[rows[outer]] = True
    return kept


def folded(
    table: Table,
    costs: OpCosts,
    rows: Sequence[Mapping[Step, list[int]]],
    staying: Sequence[Pairs],
) -> Ints:
    """The node of every op. An op joins the one before it in its piece where nothing else waits for
    that one, and it waits for nothing else."""
    pairs = np.array(
        [pair for of_rank in rows for of_piece in of_rank.values() for pair in pairwise(of_piece)],
        dtype=np.int64,
    ).reshape(-1, 2)
    before, after = pairs.T
    awaited, waits = np.zeros(len(table), bool), np.zeros(len(table), bool)
    for edges in staying:
        awaited[edges.source] = waits[edges.target] = True
    alone = (table.group < 0) & (costs.volume_bytes == 0)
    joins = (after == before + 1) & alone[before] & alone[after] & ~awaited[before] & ~waits[after]
    begins = np.ones(len(table), bool)
    begins[after[joins]] = False
    return np.cumsum(begins) - 1


def joined(nodes: Nodes, costs: OpCosts, folded: Ints) -> tuple[Nodes, OpCosts]:
    """Ops and their costs with each node's in one. Memory is the verifier's affair."""
    begins = np.diff(folded, prepend=-1) > 0

    def summed(values: Floats) -> Floats:
        return np.bincount(folded, weights=values).astype(np.float64)

    none = np.zeros(int(begins.sum()), dtype=np.int64)
    of_nodes = replace(
        nodes,
        group=nodes.group[begins],
        compute_rank=nodes.compute_rank[begins],
        rank=nodes.rank[begins],
        born_bytes=none,
        freed_bytes=none,
    )
    return of_nodes, OpCosts(
        fixed_s=summed(costs.fixed_s),
        volume_bytes=summed(costs.volume_bytes),
        interrupt_s=summed(costs.interrupt_s),
        link=costs.link[begins],
        peer_link=costs.peer_link[begins],
    )
