"""How long a step takes at least, in whatever order its ops stand.

Two bounds. `busiest`: what the busiest rank computes, or the busiest link carries. `chained`: a
unit's first forward of a step waits for its last gather, that for its reduction, and that for the
unit's last backward. So a step is never shorter than

    from a unit's first forward to the end of its last backward     (all micro-batches lie between)
  + from there to its first forward of the next step                (its state work lies between)

for any unit. Each of the two is at least as long as what a machine, a rank's lane or a link, has to
do between its two ends: the earliest that each work can come, the work, and what must still follow
it (Carlier 1982: heads and tails, one machine, preempted at will). All units whose work has to lie
in between count, not the unit's alone: what a stage exchanges cannot hide behind the compute of
stages behind it, which wait for it and for which it waits.

Only what every order has in common is used: who reads what whom wrote, durations, and that a
machine does one thing at a time. So no order, named or searched, is faster; a simulated step that
is steady is never below it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ratrain.program.kind import Kind, Lane
from ratrain.program.repeating import Repeating
from ratrain.program.table import Table
from ratrain.program.units import Bools, Ints
from ratrain.simulate.costs import Floats, OpCosts
from ratrain.simulate.work_classes import Classes, Load, Machine, classes_of, in_turn

NEVER = -np.inf
BLOCK = 64
"""Units whose chains are followed side by side."""


@dataclass(frozen=True)
class Work:
    """What a machine does at least: for so long, ops of these kinds on these units."""

    machine: Machine
    time_s: float
    kinds: tuple[Kind, ...]
    units: int


@dataclass(frozen=True)
class Interval:
    """The shortest that lies between two moments of a step, and what makes it so long; None: no
    machine, but a chain of works one after the other."""

    time_s: float
    work: Work | None


@dataclass(frozen=True)
class ChainBound:
    """The longest chain of a step: from a unit's first forward until its last `ending` ends, and
    from there to its first forward of the next step."""

    rank: int
    stage: int
    unit: str
    ending: Kind
    inside: Interval
    outside: Interval

    @property
    def time_s(self) -> float:
        return self.inside.time_s + self.outside.time_s


@dataclass(frozen=True)
class StepBound:
    """What no order of a step's work can beat."""

    busiest: Work
    chained: ChainBound | None  # None: no unit's next step waits for it

    @property
    def time_s(self) -> float:
        return max(self.busiest.time_s, 0.0 if self.chained is None else self.chained.time_s)


def step_bound(
    table: Table, costs: OpCosts, rates: Floats, whole: Repeating | None = None
) -> StepBound | None:
    """The `StepBound` of a program, or of the `whole` one that it stands for; None for programs of
    several steps."""
    if table.setup.period > 1:
        return None
    replicas = table.setup.replicas
    longer = np.ones(len(replicas))
    if whole is not None:
        pairs = zip(whole.setup.replicas, replicas, strict=True)
        longer = np.array([long.micro_batches / short.micro_batches for long, short in pairs])
    classes = classes_of(table, costs, rates, longer)
    return StepBound(_busiest(table, classes), _longest_chain(table, classes))


def _busiest(table: Table, classes: Classes) -> Work:
    """The rank that computes most, or the link that is in use longest."""
    time_s = np.zeros(len(classes.machines))
    for load in classes.loads:
        time_s[load.machine] += load.total_s
    counted = [machine.lane in (None, Lane.COMPUTE) for machine in classes.machines]
    busiest = int(np.where(counted, time_s, NEVER).argmax())
    loads = [load for load in classes.loads if load.machine == busiest]
    return _work(table, classes, busiest, loads, float(time_s[busiest]))


def _work(
    table: Table, classes: Classes, machine: int, loads: Sequence[Load], time_s: float
) -> Work:
    described = classes.machines[machine]
    on_it = np.isin(classes.of_op, [load.of for load in loads])
    on_it &= np.isin(table.rank, described.ranks)
    if described.lane is not None:
        on_it &= table.lane == described.lane
    kinds = tuple(Kind(kind) for kind in np.unique(table.kind[on_it]).tolist())
    units = len(np.unique(table.states.units.same[table.unit[on_it]]))
    return Work(described, time_s, kinds, units)


# ---- chains through a unit --------------------------------------------------------------


@dataclass(frozen=True)
class _Anchor:
    """A unit's forwards, and what ends its part of a step."""

    unit: int
    begin: int  # classes
    end: int
    ending: Kind


def _anchors(table: Table, classes: Classes) -> Iterator[_Anchor]:
    units = table.states.units
    begins: dict[tuple[int, int], int] = {}
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        rows = np.flatnonzero(table.kind == kind)
        _, first = np.unique(classes.of_op[rows], return_index=True)
        for row in rows[first].tolist():
            unit = int(table.unit[row])
            key = int(units.stage[unit]), int(units.unit_in_stage[unit])
            number = int(classes.of_op[row])
            if kind is Kind.F:
                begins[key] = number
            elif key in begins:
                yield _Anchor(unit, begins[key], number, kind)


def _longest_chain(table: Table, classes: Classes) -> ChainBound | None:
    turns = in_turn(classes)
    anchors = list(_anchors(table, classes))
    if turns is None:
        return None
    best: ChainBound | None = None
    for first in range(0, len(anchors), BLOCK):
        block = anchors[first : first + BLOCK]
        ways = _Ways(classes, turns, block)
        for at, anchor in enumerate(block):
            if not ways.returns(at):
                continue
            inside = _interval(table, classes, *ways.inside(at))
            outside = _interval(table, classes, *ways.outside(at))
            if best is None or inside.time_s + outside.time_s > best.time_s:
                units = table.states.units
                names = [unit.name for member in table.setup.members for unit in member.units]
                best = ChainBound(
                    int(units.rank[anchor.unit]),
                    int(units.stage_in_replica[anchor.unit]),
                    names[anchor.unit],
                    anchor.ending,
                    inside,
                    outside,
                )
    return best


@dataclass(frozen=True)
class _Job:
    """Work that lies between two moments: no earlier than `head_s` after the first, no later than
    `tail_s` before the second."""

    load: Load
    head_s: float
    time_s: float
    tail_s: float


class _Ways:
    """The longest ways from and to the moments of some anchors, one column each: how long after a
    moment a class begins at the earliest, and how long before one its ops end at the latest."""

    def __init__(self, classes: Classes, turns: list[int], anchors: Sequence[_Anchor]) -> None:
        self._classes, self._anchors = classes, anchors
        begins = np.array([anchor.begin for anchor in anchors])
        ends = np.array([anchor.end for anchor in anchors])
        n, columns = len(classes), len(anchors)
        time_s = classes.time_s
        before: list[list[int]] = [[] for _ in range(n)]
        after: list[list[int]] = [[] for _ in range(n)]
        crossing: list[tuple[int, int]] = []
        for arrow in classes.arrows:
            if arrow.across:
                crossing.append((arrow.source, arrow.target))
            else:
                before[arrow.target].append(arrow.source)
                after[arrow.source].append(arrow.target)

        def blank() -> Floats:
            return np.full((n, columns), NEVER)

        def through(known: Floats, source: int, zero: Ints | None) -> Floats:
            """What is known of a class and its time; 0 for the anchors whose class `zero` is it."""
            passed: Floats = known[source] + time_s[source]
            if zero is not None:
                passed[zero == source] = 0.0
            return passed

        def spread(
            known: Floats, order: Iterable[int], near: list[list[int]], zero: Ints | None
        ) -> Floats:
            """Adds to what is known what follows from it within a step, class by class."""
            for number in order:
                for source in near[number]:
                    np.maximum(known[number], through(known, source, zero), out=known[number])
            return known

        def heads(known: Floats, origin: Ints | None) -> Floats:
            """Of known earliest beginnings; `origin` ends at 0."""
            return spread(known, turns, before, origin)

        def tails(known: Floats, aim: Ints | None) -> Floats:
            """The same towards what begins at 0: `aim`."""
            return spread(known, reversed(turns), after, aim)

        def crossed(known: Floats, pairs: Iterable[tuple[int, int]], zero: Ints) -> Floats:
            """What is known in the step beside, on the other side of the arrows across."""
            beside = blank()
            for source, target in pairs:
                np.maximum(beside[target], through(known, source, zero), out=beside[target])
            return beside

        every = np.arange(columns)
        start = blank()
        start[begins, every] = 0.0
        self.inside_head = heads(start, None)
        finish = blank()
        finish[ends, every] = 0.0
        self.inside_tail = tails(finish, None)
        self.head = heads(blank(), ends)
        self.next_head = heads(crossed(self.head, crossing, ends), None)
        self.next_tail = tails(blank(), begins)
        back = [(target, source) for source, target in crossing]
        self.tail = tails(crossed(self.next_tail, back, begins), None)
        self.end_tail = self.tail[ends, every]

    def returns(self, at: int) -> bool:
        """Whether an anchor's next step waits for its end, and its end for its beginning."""
        anchor = self._anchors[at]
        return bool(self.end_tail[at] > NEVER and self.inside_tail[anchor.begin, at] > NEVER)

    def inside(self, at: int) -> tuple[list[_Job], float]:
        """What lies between an anchor's first forward and its end, and the longest way between."""
        head, tail = self.inside_head[:, at], self.inside_tail[:, at]
        longest = float((head + self._classes.time_s + tail).max())
        return self._jobs(head, tail, once=False), longest

    def outside(self, at: int) -> tuple[list[_Job], float]:
        """What lies between its end and its next step. Of micro-batches only one is sure to: the
        last one to end, or the first one to begin."""
        jobs = self._jobs(self.head[:, at], self.tail[:, at], once=True)
        later = self._jobs(self.next_head[:, at], self.next_tail[:, at], once=True)
        return [*jobs, *later], float(self.end_tail[at])

    def _jobs(self, head: Floats, tail: Floats, *, once: bool) -> list[_Job]:
        lies: Bools = (head > NEVER) & (tail > NEVER)
        classes = self._classes
        return [
            _Job(
                load,
                float(head[load.of]),
                load.least_s if once and classes.per_micro_batch[load.of] else load.total_s,
                float(tail[load.of]) + load.latency_s,
            )
            for load in classes.loads
            if lies[load.of]
        ]


def _interval(table: Table, classes: Classes, jobs: Sequence[_Job], longest_s: float) -> Interval:
    """The least time in which all jobs fit on their machines; at least the longest way."""
    by_machine: dict[int, list[_Job]] = {}
    for job in jobs:
        by_machine.setdefault(job.load.machine, []).append(job)

    def most_s(of_machine: list[_Job]) -> float:
        return (
            max(job.head_s for job in of_machine)
            + sum(job.time_s for job in of_machine)
            + max(job.tail_s for job in of_machine)
        )

    best_s, chosen = longest_s, -1
    for limit_s, machine in sorted(((most_s(j), m) for m, j in by_machine.items()), reverse=True):
        if limit_s <= best_s:
            break
        time_s = one_machine_s([(j.head_s, j.time_s, j.tail_s) for j in by_machine[machine]])
        if time_s > best_s * (1 + 1e-9):
            best_s, chosen = time_s, machine
    if chosen < 0:
        return Interval(longest_s, None)
    loads = [job.load for job in by_machine[chosen]]
    carried_s = sum(job.time_s for job in by_machine[chosen])
    return Interval(best_s, _work(table, classes, chosen, loads, carried_s))


def one_machine_s(jobs: Sequence[tuple[float, float, float]]) -> float:
    """When all jobs (head, time, tail) are over at the earliest on one machine that may interrupt
    them: it always works on the one with the longest tail (Jackson's rule)."""
    coming = sorted(jobs)
    ready: list[tuple[float, float]] = []  # (-tail, what is left)
    now = over = 0.0
    at = 0
    while at < len(coming) or ready:
        if not ready:
            now = max(now, coming[at][0])
        while at < len(coming) and coming[at][0] <= now:
            heapq.heappush(ready, (-coming[at][2], coming[at][1]))
            at += 1
        tail, left = heapq.heappop(ready)
        until = coming[at][0] if at < len(coming) else np.inf
        if now + left > until:
            heapq.heappush(ready, (tail, left - (until - now)))
            now = until
        else:
            now += left
            over = max(over, now - tail)
    return over
