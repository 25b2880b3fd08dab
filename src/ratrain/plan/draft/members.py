"""Makes parts whose stages have several members: what fits, and how layers are cut.

A member is a rank or a tensor group of one pool, of any tensor degree. Layers are cut as for any
pipeline, each stage taken as one of the speed of its members together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from operator import mul
from typing import NamedTuple

from ratrain.plan.draft.parts import Member, Part, cut_of
from ratrain.plan.draft.pools import Post, Shape
from ratrain.plan.draft.stages import Row, Stages, StageWork
from ratrain.plan.layout.enumerate import StateMode
from ratrain.program.replicas import Recovery


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
