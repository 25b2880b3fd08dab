"""How long a step takes when compute ops change places, without a new program for each order.

A program is built once. Of a further order only the lanes that follow from it are strung anew:
compute, where ranks hold several stages the messages, and the reductions and gathers whose turns
the order names; then the simulator's own clock runs. The time is that of the program built for the
order as long as nothing else in a program depends on it. What does: tensor sums, which take turns
in two places; views gathered for every use; recovery ahead of backward; and which unit's gradient
is complete first, where a rank has several stages or splits the backward of single units. There the
time is a guide.

What every order has in common is left out of the clock's nodes and edges. In each order a stage
takes its micro-batches in ascending order, and forward comes before backward. So of all ops of a
stage that one op waits for the last says it, whatever the order; and ops of a piece of compute
between which nothing else waits are one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ratrain.errors import ProgramError
from ratrain.program.graph import Pairs
from ratrain.program.kind import Kind, Lane
from ratrain.program.plain import Step
from ratrain.program.program import Program
from ratrain.program.table import Table
from ratrain.program.units import Bools, Ints
from ratrain.simulate.costs import Costs, Floats, OpCosts, costs_of_ops
from ratrain.simulate.engine import Nodes, Run, nodes_of, run_nodes


@dataclass(frozen=True)
class Precedence:
    """Of each op of a piece what no order changes: within `chain` (a stage on a rank, or a unit;
    -1: no piece's) an op comes after all whose `part` (forward, backward, weight gradient) and
    micro-batch are no later than its own."""

    chain: Ints
    part: Ints
    micro_batch: Ints


PARTS = {Kind.F: 0, Kind.B: 1, Kind.I: 1, Kind.W: 2}
"""What comes before what, of a stage's or unit's pieces of one micro-batch."""


def precedence_of(table: Table, rows: Sequence[Mapping[Step, list[int]]]) -> Precedence:
    chain, part, micro_batch = np.full((3, len(table)), -1, dtype=np.int64)
    numbers = 1 + max(number for of_rank in rows for _, number, _ in of_rank)
    for rank, of_rank in enumerate(rows):
        for (kind, number, m), of_piece in of_rank.items():
            chain[of_piece], part[of_piece] = rank * numbers + number, PARTS[kind]
            micro_batch[of_piece] = m
    return Precedence(chain, part, micro_batch)


def needed(edges: Pairs, turns: Precedence) -> Pairs:
    """Edges that no other says: of those from a chain to one op the last ones, and of those from
    one op to a chain the first ones."""
    last = _outermost(edges.source, edges.target, turns, 1)
    source, target = edges.source[last], edges.target[last]
    first = _outermost(target, source, turns, -1)
    return Pairs(source[first], target[first])


def _outermost(ends: Ints, others: Ints, turns: Precedence, way: int) -> Bools:
    """Of edges between a chain and one op those whose end in the chain is the last one (1) or the
    first (-1), whatever the order; and edges of no chain."""
    chain = turns.chain[ends]
    kept = chain < 0
    rows = np.flatnonzero(~kept)
    _, group = np.unique(np.stack([chain[rows], others[rows]], axis=1), axis=0, return_inverse=True)
    part, turn = turns.part[ends[rows]], way * turns.micro_batch[ends[rows]]
    groups = int(group.max(initial=-1)) + 1
    furthest = np.full((groups, len(PARTS)), np.iinfo(np.int64).min)
    np.maximum.at(furthest, (group, part), turn)
    outer = turn == furthest[group, part]
    for further in range(3):
        beyond = (further - part) * way > 0
        outer &= ~beyond | (turn > furthest[group, further])
    inner = np.full((groups, len(PARTS)), np.iinfo(np.int64).min)
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


Order = tuple[Step, ...]
"""What one rank computes: (kind, stage, micro-batch) in turn; by units: (kind, unit, micro-batch).
Or a lane of transfers: (kind, stage, unit) in turn."""
Orders = tuple[Order, ...]
"""The order of each place in the pipeline, all replicas the same, or of each rank of replicas that
have orders `apart`; then perhaps that of every lane of transfers whose turns are free
(`OrderClock.transfers`); without those, the program's."""

STEPS = 3
"""Steps that the clock runs: the last one counts."""


@dataclass(frozen=True)
class ClockedOrder:
    """An order on the clock."""

    step_s: float
    run: Run


class OrderClock:
    """Times orders of one program: of its pieces of compute, each a stage's for a micro-batch, or
    `by_unit` a unit's, where a rank holds one stage, the whole model. Ops of a piece between which
    nothing else waits are one node of the clock. `apart`: each replica of those that differ has an
    order of its own; then each rank is a place, and holds one stage."""

    def __init__(
        self, program: Program, costs: Costs, *, by_unit: bool = False, apart: bool = False
    ) -> None:
        self.table = table = program.table
        self.rates = costs.link_rate_bytes_per_s
        self.op_costs: OpCosts = costs_of_ops(table, costs)
        ranks = [rank for replica in table.setup.replicas for rank in range(replica.ranks)]
        # The place of every rank of the program: that in the pipeline, or one of its own.
        self.place_of: list[int] = list(range(len(ranks))) if apart else ranks
        self.orders, self.rows, ending = _pieces(table, self.place_of, by_unit=by_unit)
        self.places = len(self.orders)
        lanes = [_Lane(*each) for each in zip(self.place_of, self.rows, ending, strict=True)]
        if any(len(replica.stages) > replica.ranks for replica in table.setup.replicas):
            lanes += _message_lanes(table, self.place_of)
        free = _free_lanes(table, self.place_of)
        self.transfers = tuple(free)
        self.orders += tuple(map(tuple, free.values()))
        lanes += [_Lane(self.places + n, rows, ()) for n, rows in enumerate(free.values())]
        moving = table.lane == Lane.COMPUTE
        for lane in lanes[len(self.rows) :]:
            moving[[row for of_piece in lane.rows.values() for row in of_piece]] = True
        turns = precedence_of(table, self.rows)
        inside, across = (
            needed(_staying(edges.source, edges.target, table, moving), turns)
            for edges in (table.edges.inside, table.edges.across)
        )
        node_of = folded(table, self.op_costs, self.rows, (inside, across))
        self.piece_of_node = {
            int(node_of[row]): (rank, piece)
            for rank, rows in enumerate(self.rows)
            for piece, of_piece in rows.items()
            for row in of_piece
        }
        self._ending_nodes: Ints = np.unique(node_of[table.is_any(Kind.B, Kind.W)])
        self._strings = _Strings(
            [_of_nodes(lane, node_of) for lane in lanes],
            Pairs(node_of[inside.source], node_of[inside.target]),
            Pairs(node_of[across.source], node_of[across.target]),
        )
        self._nodes, self._costs = joined(nodes_of(table), self.op_costs, node_of)

    def __len__(self) -> int:
        return len(self._nodes)

    def timed(self, orders: Orders) -> ClockedOrder | None:
        """The step of an order; None where it never ends."""
        inside, across = self._strings.edges((*orders, *self.orders[len(orders) :]))
        nodes = replace(self._nodes, inside=inside, across=across)
        try:
            run = run_nodes(nodes, self._costs, self.rates, STEPS)
        except ProgramError:
            return None
        before, last = (run.end_s[self._ending(step)].max() for step in (-2, -1))
        return ClockedOrder(float(last - before), run)

    def last_node(self, run: Run) -> int:
        """The node that ends a run's last step."""
        nodes = self._ending(-1)
        return int(nodes[run.end_s[nodes].argmax()])

    def _ending(self, step: int) -> Ints:
        """The nodes one of which ends a step. The steady step is counted from end to end."""
        return self._ending_nodes + (STEPS + step) * len(self)


def _pieces(
    table: Table, place_of: Sequence[int], *, by_unit: bool
) -> tuple[Orders, list[dict[Step, list[int]]], list[list[int]]]:
    """The order of the program; for each rank the rows of each piece, and those at its lane's end
    that belong to none. What is recovered belongs to the backward behind it."""
    units = table.states.units
    number_of = units.unit_in_stage if by_unit else units.stage_in_replica
    rows: list[dict[Step, list[int]]] = []
    ending: list[list[int]] = []
    for rank in range(len(place_of)):
        pieces: dict[Step, list[int]] = {}
        waiting: list[int] = []
        lane = np.flatnonzero((table.rank == rank) & (table.lane == Lane.COMPUTE))
        for row in lane.tolist():
            waiting.append(row)
            kind = Kind(int(table.kind[row]))
            if kind in PARTS:
                number = int(number_of[table.unit[row]])
                key = kind, number, int(table.micro_batch[row])
                pieces.setdefault(key, []).extend(waiting)
                waiting = []
        rows.append(pieces)
        ending.append(waiting)
    places = 1 + max(place_of)
    return tuple(tuple(rows[place_of.index(place)]) for place in range(places)), rows, ending


@dataclass(frozen=True)
class _Lane:
    """A lane whose order follows from what one rank computes."""

    place: int  # of that rank in the pipeline
    rows: Mapping[Step, list[int]]  # of the lane's ops, by the piece that they follow
    ending: Sequence[int]


def _free_lanes(
    table: Table, place_of: Sequence[int]
) -> dict[tuple[int, Lane], dict[Step, list[int]]]:
    """Lanes of transfers whose turns an order may choose, by place in the pipeline: those that hold
    nothing but one reduction, or one gather, of each unit. Where replicas or members differ, a turn
    would have to be chosen for all of them: there are none."""
    setup, units = table.setup, table.states.units
    lanes: dict[tuple[int, Lane], dict[Step, list[int]]] = {}
    stages = sum(len(replica.stages) for replica in setup.replicas)
    if len(setup.replicas) > 1 or len(setup.members) > stages:
        return lanes
    for rank, place in enumerate(place_of):
        for lane, kind in ((Lane.REDUCE, Kind.GradSync), (Lane.GATHER, Kind.PrefetchW)):
            rows = np.flatnonzero((table.rank == rank) & (table.lane == lane))
            once = (table.kind[rows] == kind) & (table.micro_batch[rows] < 0)
            if len(rows) > 1 and once.all():
                held = table.unit[rows]
                stage, unit = units.stage_in_replica[held], units.unit_in_stage[held]
                of_rows = zip(stage.tolist(), unit.tolist(), rows.tolist(), strict=True)
                lanes[place, lane] = {(kind, s, u): [row] for s, u, row in of_rows}
    return lanes


def _of_nodes(lane: _Lane, node_of: Ints) -> _Lane:
    """A lane of ops as one of nodes."""
    rows = {piece: np.unique(node_of[of_piece]).tolist() for piece, of_piece in lane.rows.items()}
    return _Lane(lane.place, rows, [int(node_of[row]) for row in lane.ending])


class _Strings:
    """All edges of an order: those of lanes that follow from it, and those that stay."""

    def __init__(self, lanes: Sequence[_Lane], inside: Pairs, across: Pairs) -> None:
        self._lanes, self._inside, self._across = lanes, inside, across
        self._strung: list[tuple[Order, Ints] | None] = [None] * len(lanes)

    def edges(self, orders: Orders) -> tuple[Pairs, Pairs]:
        """Edges inside a step, and from one step to the next."""
        lanes = [
            self._string(number, orders[lane.place]) for number, lane in enumerate(self._lanes)
        ]
        inside = Pairs(
            np.concatenate([*(rows[:-1] for rows in lanes), self._inside.source]),
            np.concatenate([*(rows[1:] for rows in lanes), self._inside.target]),
        )
        across = Pairs(
            np.concatenate([*(rows[-1:] for rows in lanes), self._across.source]),
            np.concatenate([*(rows[:1] for rows in lanes), self._across.target]),
        )
        return inside, across

    def _string(self, number: int, order: Order) -> Ints:
        """The nodes of a lane in their turn."""
        strung = self._strung[number]
        if strung is not None and strung[0] is order:
            return strung[1]
        lane = self._lanes[number]
        turns = [row for piece in order for row in lane.rows.get(piece, ())]
        rows = np.array([*turns, *lane.ending], dtype=np.int64)
        self._strung[number] = order, rows
        return rows


_SENDER = {Kind.SEND_F: 0, Kind.RECV_F: -1, Kind.SEND_B: 0, Kind.RECV_B: 1}
"""Where, counted from an op's stage, the stage stands that makes what it carries."""


def _message_lanes(table: Table, place_of: Sequence[int]) -> list[_Lane]:
    """Sends and receives, in the order in which their sender computes."""
    units, places = table.states.units, 1 + max(place_of)
    backward = Kind.I if table.setup.split_backward else Kind.B
    lanes: dict[tuple[int, int], tuple[int, dict[Step, list[int]]]] = {}
    for row in np.flatnonzero(table.is_any(*_SENDER)).tolist():
        kind = Kind(int(table.kind[row]))
        stage = int(units.stage_in_replica[table.unit[row]]) + _SENDER[kind]
        makes = Kind.F if kind in (Kind.SEND_F, Kind.RECV_F) else backward
        key = int(table.rank[row]), int(table.lane[row])
        _, rows = lanes.setdefault(key, (stage % places, {}))
        rows[makes, stage, int(table.micro_batch[row])] = [row]
    return [_Lane(place, rows, ()) for place, rows in lanes.values()]


def _staying(source: Ints, target: Ints, table: Table, moving: Bools) -> Pairs:
    """Edges that are not between two ops of one lane that moves: its string says those."""
    same = (table.rank[source] == table.rank[target]) & (table.lane[source] == table.lane[target])
    kept = ~(same & moving[source])
    return Pairs(source[kept], target[kept])
