"""Where each rank's measured step went, divided as the simulator divides a predicted one.

A compute op that begins later than its lane was free has waited. The wait is followed back along
the ops of its own rank: while the one that ended last was under way, it is time of that op's lane;
then what that op had waited for, and so on. What is left was other ranks' time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ratrain.errors import TimelineError
from ratrain.program.edges import EdgeList
from ratrain.program.kind import Kind, Lane, Waiting
from ratrain.program.program import Program
from ratrain.runtime.seats import Seats
from ratrain.timeline.timeline import Timeline

OF_TIERS = tuple(dict.fromkeys(lane.waiting for lane in Lane if lane.moves))
"""Waits for the lanes that move states between memory tiers."""
OF_LANES = (Waiting.TENSOR, Waiting.REDUCE, Waiting.GATHER, Waiting.UPDATE, *OF_TIERS)
"""Waits that are kinds of their own."""
KINDS = ("compute", "recovery", "stages", *OF_LANES, "other")
"""`stages`: other stages and their tensors; `tensor`: sums inside a tensor group; `other`: between
ops nothing is awaited, or a save."""

_RECORD_AGAIN = "train a few more steps: `ratrain train JOB --resume --steps N` records them"
_Node = tuple[int, int]
"""(step of the run, row of the program's table)."""


@dataclass
class _Rank:
    """One world rank's ops: when they ran, and which of its own ops each waits for."""

    start_s: dict[_Node, float] = field(default_factory=dict[_Node, float])
    end_s: dict[_Node, float] = field(default_factory=dict[_Node, float])


@dataclass(frozen=True)
class _Waits:
    """The table's rows that a row waits for on its own rank, in its period and the one before; and
    how many steps before its own each of them runs."""

    inside: dict[int, list[tuple[int, int]]]
    across: dict[int, list[tuple[int, int]]]

    def of(self, node: _Node) -> list[_Node]:
        step, op = node
        awaited = (*self.inside.get(op, ()), *self.across.get(op, ()))
        return [(step - before, earlier) for earlier, before in awaited]


def measured_kinds(
    program: Program, seats: Seats, measured: Timeline, step: int, steps: int = 1
) -> list[dict[str, float]]:
    """Seconds of each of `KINDS` in a step, by world rank; of several `steps`, of which this is the
    last, the mean. The step before must be there too. They add up to the time between the ends of
    the last compute ops of that one and of the last."""
    ranks, steps_of_period = _ranks(program, seats, measured)
    waits = _waits(program)
    kinds: list[dict[str, float]] = []
    for seat in seats.all():
        lane, rank = _compute_lane(program, seat.program_rank), ranks[seat.world_rank]
        if not lane and _serves_none(program, seat.program_rank):
            kinds.append({})
            continue
        seconds: dict[str, float] = defaultdict(float)
        for each in range(step - steps + 1, step + 1):
            ops, before = (
                [op for op in lane if program.table.step[op] == steps_of_period.get(of)]
                for of in (each, each - 1)
            )
            _require_recorded(program, rank, ops, before, each, seat.world_rank)
            _step(program, rank, waits, ops, (each, rank.end_s[each - 1, before[-1]]), seconds)
        kinds.append({kind: seconds[kind] / steps for kind in KINDS})
    # A rank that computes nothing waits for the others all the time.
    whole_s = fmean(sum(row.values()) for row in kinds if row)
    return [row or {kind: whole_s * (kind == "stages") for kind in KINDS} for row in kinds]


def _serves_none(program: Program, rank: int) -> bool:
    """Whether a rank computes no micro-batch of any stage that it holds."""
    units = program.table.states.units
    return not units.micro_batches[units.rank == rank].any()


def _require_recorded(
    program: Program,
    rank: _Rank,
    lane: Sequence[int],
    before: Sequence[int],
    step: int,
    world_rank: int,
) -> None:
    """A TimelineError where an op of the step, or the last one before it, was not recorded."""
    needed = [*((step, op) for op in lane), *((step - 1, op) for op in before[-1:])]
    missing = [node for node in needed if node not in rank.end_s]
    problem = ""
    if not lane or not before:
        problem = f"no compute op of step {step if before else step - 1} was recorded"
    if missing:
        step_missing, op = missing[0]
        problem = f"{program.table.word(op)} of step {step_missing} was not recorded"
    if problem:
        raise TimelineError(problem, place=f"rank {world_rank}", fix=_RECORD_AGAIN)


def _step(
    program: Program,
    rank: _Rank,
    waits: _Waits,
    lane: Sequence[int],
    began: tuple[int, float],
    seconds: dict[str, float],
) -> None:
    """Adds up one rank's step, from its last compute op of the step before to that of this one.
    `began`: the step, and when that op ended."""
    step, free_s = began
    for op in lane:
        node = step, op
        _divide(program, rank, waits, node, free_s, seconds)
        kind = "recovery" if program.table.kind[op] == Kind.R else "compute"
        seconds[kind] += rank.end_s[node] - rank.start_s[node]
        free_s = rank.end_s[node]


def _divide(
    program: Program,
    rank: _Rank,
    waits: _Waits,
    node: _Node,
    free_s: float,
    seconds: dict[str, float],
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
        seconds[late] += until_s - ended_s
        waiting = Kind(int(program.table.kind[node[1]])).waiting
        kind = "other" if waiting is Waiting.DISK else "stages"
        seconds[waiting if waiting in OF_LANES else kind] += ended_s - began_s
        # An op that could begin later than all it waited for on its own rank waited for others.
        until_s, late = began_s, "stages"
    seconds[late] += max(until_s - free_s, 0.0)


def _ranks(
    program: Program, seats: Seats, measured: Timeline
) -> tuple[list[_Rank], dict[int, int]]:
    """Every world rank's ops, and which step of the program's period each step of the run was."""
    table = program.table
    steps_of_period: dict[int, int] = {}
    rows = {
        (int(table.rank[op]), Lane(int(table.lane[op])).word, table.word(op)): op
        for op in range(len(table))
    }
    parts = [seat.program_rank for seat in seats.all()]
    ranks = [_Rank() for _ in parts]
    for span in measured.spans:
        op = rows.get((parts[span.rank], span.lane, span.word))
        if op is None:
            raise TimelineError(
                f"{span.word} on lane {span.lane} is not an op of the run's program",
                place=f"rank {span.rank}, step {span.step}",
                fix=_RECORD_AGAIN,
            )
        steps_of_period[span.step] = int(table.step[op])
        node = span.step, op
        ranks[span.rank].start_s[node] = span.start_s
        ranks[span.rank].end_s[node] = span.end_s
    return ranks, steps_of_period


def _waits(program: Program) -> _Waits:
    table = program.table

    def same_rank(edges: EdgeList, before: int) -> dict[int, list[tuple[int, int]]]:
        awaited: dict[int, list[tuple[int, int]]] = defaultdict(list)
        steps = (before + table.step[edges.target] - table.step[edges.source]).tolist()
        on_rank = (table.rank[edges.source] == table.rank[edges.target]).tolist()
        rows = zip(edges.source.tolist(), edges.target.tolist(), steps, on_rank, strict=True)
        for source, target, earlier, same in rows:
            if same:
                awaited[target].append((source, earlier))
        return awaited

    edges, period = table.edges, table.setup.period
    return _Waits(same_rank(edges.inside, 0), same_rank(edges.across, period))


def _compute_lane(program: Program, rank: int) -> list[int]:
    table = program.table
    rows = range(len(table))
    return [op for op in rows if table.rank[op] == rank and table.lane[op] == Lane.COMPUTE]
