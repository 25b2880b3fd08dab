"""Parts whose stages have several members: what fits, how layers are cut, and about how long a
draft of them takes.

A member is a rank or a tensor group of one pool, of any tensor degree. Layers are cut as for any
pipeline, each stage taken as one of the speed of its members together.

A draft's compute runs on a clock, and reductions and gathers add what they take behind it. Every
member computes, of the order of its whole stage, what it serves; a message takes its time and waits
for no other. Of a long step the middle is left out. Reductions of units that the same stages hold
follow one another, and their gathers must end before the next step needs them. That links are
shared, messages have few slots, and reductions take from compute, is left to the whole program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise
from math import inf
from operator import mul
from typing import NamedTuple

from ratrain.plan.draft.clock import StageClock
from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.parts import Member, Part, cut_of
from ratrain.plan.draft.pools import Post, Shape
from ratrain.plan.draft.stage_ops import kept_of
from ratrain.plan.draft.stages import Row, Stages, StageWork
from ratrain.plan.layout.enumerate import StateMode
from ratrain.program.kind import Kind
from ratrain.program.replicas import Recovery
from ratrain.program.skeletons import SKELETONS, Place


class Quick(NamedTuple):
    """What each further micro-batch of a part takes, what the first takes beside that, and whether
    a member recovers."""

    slot_s: float
    ramp_s: float
    recovers: bool


class MembersParts:
    """Makes the parts of a job with micro-batches of one size, whose states are shared so.
    `beside`: further replicas, each of which holds every layer."""

    def __init__(self, stages: Stages, micro_batch: int, state: StateMode, beside: int) -> None:
        self.stages, self.micro_batch, self.state, self._beside = stages, micro_batch, state, beside
        self._together: dict[object, tuple[Row, int]] = {}

    def quick(self, shapes: tuple[Shape, ...], holders: tuple[Shape, ...] = ()) -> Quick | None:
        """About what `made` would take; None where it does not fit."""
        held = self._held(shapes, holders or ((),) * len(shapes))
        cut = cut_of([row for row, _ in held], self.stages.job.model.spec.layers)
        if cut is None:
            return None
        busy_s = [row.busy_s[count] for (row, _), count in zip(held, cut, strict=True)]
        slot_s = max(busy_s)
        first_s = sum(map(mul, busy_s, map(len, shapes)))
        recovers = any(count > kept for (_, kept), count in zip(held, cut, strict=True))
        return Quick(slot_s, max(0.0, first_s - slot_s), recovers)

    def made(
        self,
        shapes: tuple[Shape, ...],
        holders: tuple[Shape, ...] = (),
        layers: tuple[int, ...] | None = None,
    ) -> Part | None:
        """The part of stages with these members that compute, and `holders` beside them; `layers`:
        where they are given. None where it does not fit."""
        stages, size = self.stages, self.micro_batch
        holders = holders or ((),) * len(shapes)
        cut = layers or cut_of(
            [row for row, _ in self._held(shapes, holders)], stages.job.model.spec.layers
        )
        if cut is None:
            return None
        works: list[tuple[StageWork, ...]] = []
        for s, count in enumerate(cut):
            held = [row[count] for row in self._rows_of(shapes, holders, s)]
            spare = [self._row(post, 0, s, shapes, holders)[count] for post in holders[s]]
            fitting = tuple(work for work in held if work is not None)
            if len(fitting) < len(held) or None in spare:
                return None
            works.append(fitting)
        messages_s = [
            min(stages.message_s(source, target, size) for source in here for target in there)
            for here, there in pairwise(shapes)
        ]
        if inf in messages_s:
            return None
        beside = tuple(
            (*map(Member, computing[1:], of[1:]), *(Member(post, None) for post in holding))
            for computing, of, holding in zip(shapes, works, holders, strict=True)
        )
        firsts = tuple(shape[0] for shape in shapes), tuple(of[0] for of in works)
        return Part(
            firsts[0], size, cut, firsts[1], (*messages_s, 0.0), beside if any(beside) else ()
        )

    def _held(self, shapes: tuple[Shape, ...], holders: tuple[Shape, ...]) -> list[tuple[Row, int]]:
        """The work of each stage as that of a single member, by its layers; and up to how many of
        them no member recovers."""
        held: list[tuple[Row, int]] = []
        behind = sum(map(len, shapes))
        for s, members in enumerate(shapes):
            key = members, len(holders[s]), behind, s == 0, s == len(shapes) - 1
            behind -= len(members)
            known = self._together.get(key)
            if known is None:
                rows = self._rows_of(shapes, holders, s)
                known = self._together[key] = _together(rows), min(map(_kept, rows))
            held.append(known)
        return held

    def _rows_of(
        self, shapes: tuple[Shape, ...], holders: tuple[Shape, ...], stage: int
    ) -> list[Row]:
        """The work of each member of a stage that computes, by its layers. It holds its share of
        the micro-batches that its stage has in flight, rounded up: one for each member from there
        on."""
        behind, members = sum(map(len, shapes[stage:])), shapes[stage]
        held = -(-behind // len(members))
        return [self._row(post, held, stage, shapes, holders) for post in members]

    def _row(
        self,
        post: Post,
        held: int,
        stage: int,
        shapes: tuple[Shape, ...],
        holders: tuple[Shape, ...],
    ) -> Row:
        owners = len(shapes[stage]) + len(holders[stage]) + self._beside
        ends = stage == 0, stage == len(shapes) - 1
        return self.stages.row(post, self.micro_batch, held, *ends, owners, self.state)


def _kept(row: Row) -> int:
    """Up to how many layers everything is kept."""
    return sum(work is not None and work.recovery is Recovery.NONE for work in row) - 1


def _together(rows: Sequence[Row]) -> Row:
    """The work of a stage whose members have these, as that of a single one."""
    if len(rows) == 1:
        return rows[0]

    def together(busy_s: Sequence[float]) -> StageWork | None:
        if inf in busy_s or 0.0 in busy_s:
            return None
        return StageWork(
            0.0, 1 / sum(1 / of_member_s for of_member_s in busy_s), 0.0, Recovery.NONE
        )

    of_layers = zip(*(row.busy_s[1 : len(row)] for row in rows), strict=True)
    return Row((None, *map(together, of_layers)))


@dataclass(frozen=True)
class _Span:
    """A stage's part of a step: its first forward and its last backward; the number of its first
    unit, and how many it has. `busy_s`: of the member that takes longest from its first op to its
    last; `begin_s`: how late the first forward may begin, if a member that ends before the others
    begins as much later."""

    busy_s: float
    begin_s: float
    forward_s: float
    end_s: float
    backward_s: float
    first: int
    units: int

    def needed_s(self, unit: int) -> float:
        """When a step begins with a unit's forward."""
        return self.begin_s + self.forward_s * (unit - self.first) / self.units

    def done_s(self, unit: int) -> float:
        """When a step ends with a unit's backward."""
        return self.end_s - self.backward_s * (unit - self.first) / self.units


class MembersClock:
    """Times the drafts of a job."""

    def __init__(self, stages: Stages, clock: StageClock) -> None:
        self._stages, self._clock = stages, clock
        self._spans: dict[object, tuple[_Span, ...]] = {}

    def draft(self, parts: Sequence[Part], shares: Sequence[int], state: StateMode) -> Draft | None:
        """The draft of parts with these shares; None where one that is to compute has nothing
        to."""
        sides = list(zip(parts, shares, strict=True))
        skeleton = SKELETONS[self._skeleton]
        if not all(skeleton.takes(share, len(part.shape), 1) for part, share in sides):
            return None
        if any(share < part.fewest for part, share in sides):
            return None
        if not all(mine for part, share in sides for of in part.serves(share) for mine in of):
            return None
        spans = [self._spans_of(part, share) for part, share in sides]
        compute_s = max(span.busy_s for of_part in spans for span in of_part)
        made = Draft(tuple(parts), tuple(shares), state, 0.0, trainable=True)
        estimate_s = max(made.least_s, compute_s, self._shared_s(made, spans))
        return replace(made, estimate_s=estimate_s)

    def _spans_of(self, part: Part, micro_batches: int) -> tuple[_Span, ...]:
        """The spans of a part's stages."""
        key = part, micro_batches
        if key not in self._spans:
            kept = kept_of(self._skeleton, len(part.shape), micro_batches)
            left_s = (micro_batches - kept) * part.slot_s
            first, spans, last = 0, list[_Span](), len(part.shape) - 1
            for s, (busy_s, begin_s, end_s) in enumerate(_lanes_s(self._skeleton, part, kept)):
                units = part.layers[s] + (s == 0) + (s == last)
                works = part.computing[s]
                forward_s = min(work.forward_s for work in works)
                backward_s = max(work.backward_s for work in works)
                lane_s = busy_s + left_s, begin_s, forward_s, end_s + left_s, backward_s
                spans.append(_Span(*lane_s, first, units))
                first += units
            self._spans[key] = tuple(spans)
        return self._spans[key]

    @property
    def _skeleton(self) -> str:
        return self._stages.strategy.skeleton

    def _shared_s(self, draft: Draft, spans: Sequence[Sequence[_Span]]) -> float:
        """What a step takes for its reductions and gathers."""
        parts, state = draft.parts, draft.state
        layers = self._stages.job.model.spec.layers
        places = [
            [s for s, span in enumerate(of_part) for _ in range(span.units)] for of_part in spans
        ]
        runs = [
            (stages, list(units))
            for stages, units in groupby(
                range(layers + 2), key=lambda unit: tuple(of_part[unit] for of_part in places)
            )
        ]
        used = draft.used(len(self._stages.pools))
        free_s: dict[tuple[int, int], float] = {}
        gathers: list[tuple[list[tuple[int, int]], list[int], list[float]]] = []
        step_s = 0.0
        for stages, units in reversed(runs):
            lanes = list(enumerate(stages))
            held = Counter(post for n, s in lanes for post in parts[n].posts[s])
            if sum(held.values()) == 1:
                continue
            holders = tuple(sorted(held.items(), key=lambda each: (each[0].pool, each[0].tensor)))
            seconds = [self._seconds(holders, unit, layers, state, used) for unit in units]
            over = [spans[n][s] for n, s in lanes]
            begin_s = max(span.done_s(units[-1]) for span in over)
            begin_s = max([begin_s, *(free_s.get(lane, 0.0) for lane in lanes)])
            done_s = max(
                begin_s + sum(reduced_s for reduced_s, _ in seconds),
                max(span.done_s(units[0]) for span in over) + seconds[0][0],
            )
            free_s.update(dict.fromkeys(lanes, done_s))
            step_s = max(step_s, *(done_s - span.needed_s(units[0]) for span in over))
            gathers.append((lanes, units, [gathered_s for _, gathered_s in seconds]))
        for lanes, units, gathered_s in reversed(gathers):
            begin_s = max(free_s[lane] for lane in lanes)
            done_s = begin_s + sum(gathered_s)
            free_s.update(dict.fromkeys(lanes, done_s))
            for n, s in lanes:
                span = spans[n][s]
                first_s = begin_s + gathered_s[0] - span.needed_s(units[0])
                step_s = max(step_s, first_s, done_s - span.needed_s(units[-1]))
        return step_s

    def _seconds(
        self,
        holders: tuple[tuple[Post, int], ...],
        unit: int,
        layers: int,
        state: StateMode,
        used: tuple[int, ...],
    ) -> tuple[float, float]:
        """Of a unit's reduction and its gather."""
        block = 0 if unit == 0 else 1 if unit <= layers else 2
        sums = self._clock.collectives(holders, block, state.sharding > 0, used)
        rate = self._stages.links.rates_bytes_per_s[sums.link]
        return sums.reduction.alone_s(rate), sums.gather.alone_s(rate)


def _lanes_s(skeleton: str, part: Part, kept: int) -> list[tuple[float, float, float]]:
    """Of each stage `busy_s`, `begin_s` and `end_s` of its span."""
    orders = _orders(skeleton, tuple(map(len, part.computing)), kept)
    last = len(part.shape) - 1
    lanes = [
        (s, work, [step for step in orders[s] if step[1] in mine])
        for s, (works, shares) in enumerate(zip(part.computing, part.serves(kept), strict=True))
        for work, mine in zip(works, map(frozenset, shares), strict=True)
    ]
    arrived: dict[tuple[bool, int, int], float] = {(True, 0, m): 0.0 for m in range(kept)}
    free_s, turns = [0.0] * len(lanes), [0] * len(lanes)
    begins_s: dict[int, float] = {}
    waiting = set(range(len(lanes)))
    while waiting:
        before = sum(turns)
        for number in sorted(waiting):
            s, work, steps = lanes[number]
            while turns[number] < len(steps):
                forward, m = steps[turns[number]]
                ready_s = arrived.get((forward, s, m))
                if ready_s is None:
                    break
                begin_s = max(ready_s, free_s[number])
                end_s = begin_s + (work.forward_s if forward else work.backward_s)
                if forward:
                    begins_s.setdefault(number, begin_s)
                    target = (False, s, m) if s == last else (True, s + 1, m)
                    arrived[target] = end_s + part.messages_s[s]
                elif s > 0:
                    arrived[False, s - 1, m] = end_s + part.messages_s[s - 1]
                free_s[number] = end_s
                turns[number] += 1
            if turns[number] == len(steps):
                waiting.discard(number)
        assert sum(turns) > before, "members do not wait for each other in a circle"
    spans: list[tuple[float, float, float]] = []
    for stage in range(last + 1):
        # of a long step's kept part, a slow member may serve none
        members = [n for n, (s, _, _) in enumerate(lanes) if s == stage and n in begins_s]
        busy_s = [free_s[number] - begins_s[number] for number in members]
        end_s = max(free_s[number] for number in members)
        spans.append((max(busy_s), end_s - max(busy_s), end_s))
    return spans


@lru_cache(maxsize=4096)
def _orders(
    skeleton: str, members: tuple[int, ...], micro_batches: int
) -> tuple[tuple[tuple[bool, int], ...], ...]:
    """Of each stage with so many members the forwards and backwards in their order."""
    count, order = len(members), SKELETONS[skeleton].order
    return tuple(
        tuple(
            (kind == Kind.F, m)
            for kind, _, m in order(
                Place(s, count, 1, micro_batches, sum(members[s:]) - (count - s), 0)
            )
            if kind in (Kind.F, Kind.B, Kind.I)
        )
        for s in range(count)
    )
