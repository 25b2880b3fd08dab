"""Where each rank's measured step went, divided as the simulator divides a predicted one.

A compute op that begins later than its lane was free has waited. The wait is followed back along
the ops of its own rank: while the one that ended last was under way, it is time of that op's lane;
then what that op had waited for, and so on. What is left was other ranks' time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ratrain.program.actions import Kind, Lane
from ratrain.program.program import Program
from ratrain.runtime.seats import Seats
from ratrain.timeline.timeline import Timeline

_KIND_OF_LANE = {
    Lane.REDUCE: "reduce",
    Lane.GATHER: "gather",
    Lane.UPDATE: "update",
    Lane.TENSOR: "tensor",
    Lane.DISK: "other",
}
KINDS = ("compute", "recovery", "stages", "tensor", "reduce", "gather", "update", "other")
"""`stages`: other stages and their tensors; `tensor`: sums inside a tensor group; `other`: between
ops nothing is awaited, or a save."""

_Node = tuple[int, int]
"""(step, row of the program's table)."""


@dataclass
class _Rank:
    """One world rank's ops: when they ran, and which of its own ops each waits for."""

    start_s: dict[_Node, float] = field(default_factory=dict[_Node, float])
    end_s: dict[_Node, float] = field(default_factory=dict[_Node, float])


@dataclass(frozen=True)
class _Waits:
    """The table's rows that a row waits for on its own rank, in its step and the one before."""

    inside: dict[int, list[int]]
    across: dict[int, list[int]]

    def of(self, node: _Node) -> list[_Node]:
        step, op = node
        own = [(step, other) for other in self.inside.get(op, ())]
        return own + [(step - 1, other) for other in self.across.get(op, ())]


def measured_kinds(
    program: Program, seats: Seats, measured: Timeline, step: int
) -> list[dict[str, float]]:
    """Seconds of each of `KINDS` in a step, by world rank; the step before must be there too. They
    add up to the time between the ends of the two steps' last compute ops."""
    ranks = _ranks(program, seats, measured)
    waits = _waits(program)
    found: list[dict[str, float]] = []
    for seat in seats.all():
        lane = _compute_lane(program, seat.program_rank)
        row = _step(program, ranks[seat.world_rank], waits, lane, step)
        found.append({kind: row[kind] for kind in KINDS})
    return found


def _step(
    program: Program, rank: _Rank, waits: _Waits, lane: Sequence[int], step: int
) -> dict[str, float]:
    """One rank's step, from its last compute op of the step before to that of this one."""
    found: dict[str, float] = defaultdict(float)
    free_s = rank.end_s[step - 1, lane[-1]]
    for op in lane:
        node = step, op
        _divide(program, rank, waits, node, free_s, found)
        kind = "recovery" if program.table.kind[op] == Kind.R else "compute"
        found[kind] += rank.end_s[node] - rank.start_s[node]
        free_s = rank.end_s[node]
    return found


def _divide(
    program: Program,
    rank: _Rank,
    waits: _Waits,
    node: _Node,
    free_s: float,
    found: dict[str, float],
) -> None:
    """Adds a wait, from `free_s` until an op begins, to what it was for."""
    until_s, late = rank.start_s[node], "other"
    while until_s > free_s:
        causes = [cause for cause in waits.of(node) if rank.end_s.get(cause, free_s) > free_s]
        if not causes:
            break
        node = max(causes, key=rank.end_s.__getitem__)
        ended_s = min(rank.end_s[node], until_s)
        began_s = min(max(rank.start_s[node], free_s), ended_s)
        found[late] += until_s - ended_s
        found[_KIND_OF_LANE.get(Lane(int(program.table.lane[node[1]])), "stages")] += (
            ended_s - began_s
        )
        # An op that could begin later than all it waited for on its own rank waited for others.
        until_s, late = began_s, "stages"
    found[late] += max(until_s - free_s, 0.0)


def _ranks(program: Program, seats: Seats, measured: Timeline) -> list[_Rank]:
    table = program.table
    rows = {
        (int(table.rank[op]), Lane(int(table.lane[op])).word, table.word(op)): op
        for op in range(len(table))
    }
    parts = [seat.program_rank for seat in seats.all()]
    found = [_Rank() for _ in parts]
    for span in measured.spans:
        node = span.step, rows[parts[span.rank], span.lane, span.word]
        found[span.rank].start_s[node] = span.start_s
        found[span.rank].end_s[node] = span.end_s
    return found


def _waits(program: Program) -> _Waits:
    table = program.table

    def own(source: Sequence[int], target: Sequence[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for one, other in zip(source, target, strict=True):
            if table.rank[one] == table.rank[other]:
                found[other].append(one)
        return found

    inside, across = table.edges.inside, table.edges.across
    return _Waits(
        own(inside.source.tolist(), inside.target.tolist()),
        own(across.source.tolist(), across.target.tolist()),
    )


def _compute_lane(program: Program, rank: int) -> list[int]:
    table = program.table
    rows = range(len(table))
    return [op for op in rows if table.rank[op] == rank and table.lane[op] == Lane.COMPUTE]
