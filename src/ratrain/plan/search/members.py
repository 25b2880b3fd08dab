"""Drafts in which kinds of device share stages: pipelines with several members in a stage.

A member is a rank or a tensor group of one pool, of any tensor degree. Micro-batches go to the
members of each stage in proportion to their speed, so that one may change its kind where stages
meet (the stage-major form). A stage of members with f + b seconds each works like one of

    1 / sum of 1 / (f + b)

seconds a micro-batch, for which layers are cut as for any pipeline. Several such pipelines, and
pipelines of single devices beside them, share the batch like any replicas. A stage may have members
that only hold it: they compute nothing, and own a part of the optimizer's states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from itertools import pairwise
from math import inf
from operator import mul
from typing import NamedTuple

from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.search.parts import cut_of
from ratrain.plan.search.pools import Post, Shape, used_of
from ratrain.plan.search.stages import Row, Stages, StageWork
from ratrain.program.replicas import Recovery

Recoveries = Sequence[Sequence[Recovery]]
"""Of each member of each stage that computes."""


@dataclass(frozen=True)
class MembersPart:
    """A pipeline without its share of the step. `shapes`: the posts of each stage's members that
    compute; `holders`: of those that only hold it."""

    shapes: tuple[Shape, ...]
    holders: tuple[Shape, ...]
    layers: tuple[int, ...]
    works: tuple[tuple[StageWork, ...], ...]  # of each member of each stage that computes
    messages_s: tuple[float, ...]  # behind each stage; of the last, none
    micro_batch: int

    @cached_property
    def key(self) -> object:
        """What tells parts apart."""
        return self.shapes, self.holders, self.layers, self.recovery, self.micro_batch

    @property
    def posts(self) -> tuple[Shape, ...]:
        """Of all members of each stage, those that compute first."""
        return tuple(a + b for a, b in zip(self.shapes, self.holders, strict=True))

    @property
    def recovery(self) -> tuple[tuple[Recovery, ...], ...]:
        return tuple(tuple(work.recovery for work in works) for works in self.works)

    @property
    def has_members(self) -> bool:
        """Whether a stage has several."""
        return max(map(len, self.posts)) > 1

    @property
    def recovers(self) -> bool:
        return any(mode is not Recovery.NONE for modes in self.recovery for mode in modes)

    @cached_property
    def stage_s(self) -> tuple[float, ...]:
        """What each further micro-batch takes of each stage, all of whose members are at work."""
        return tuple(1 / sum(1 / work.busy_s for work in works) for works in self.works)

    @property
    def slot_s(self) -> float:
        """What each further micro-batch takes."""
        return max(self.stage_s)

    @cached_property
    def ahead_s(self) -> tuple[float, ...]:
        """What the first micro-batch takes at least before each stage, there and back."""
        ahead_s = [0.0]
        for works in self.works[:-1]:
            ahead_s.append(ahead_s[-1] + min(work.busy_s - work.early_s for work in works))
        return tuple(ahead_s)

    def step_s(self, micro_batches: int) -> float:
        """About how long so many micro-batches take, without what follows the last."""
        return 2 * sum(self.messages_s) + max(
            ahead_s + micro_batches * busy_s
            for ahead_s, busy_s in zip(self.ahead_s, self.stage_s, strict=True)
        )

    def serves(self, micro_batches: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For each stage the micro-batches of its members that compute."""
        return tuple(served(works, micro_batches) for works in self.works)

    def least_s(self, micro_batches: int) -> float:
        """What its compute takes at least: a member computes its micro-batches one after another,
        between the first one's way to it and the last one's way back. (Where its own processors
        move bytes, a wait may hide what it loses by that, and this is a little more than the
        least.)"""
        return max(
            ahead_s + max(len(m) * work.busy_s for m, work in zip(shares, works, strict=True))
            for ahead_s, shares, works in zip(
                self.ahead_s, self.serves(micro_batches), self.works, strict=True
            )
        )


@dataclass(frozen=True)
class MembersDraft:
    """Pipelines, each with its micro-batches, before they have devices."""

    parts: tuple[MembersPart, ...]
    shares: tuple[int, ...]
    state: StateMode
    least_s: float
    """What its compute takes at least"""
    estimate_s: float

    @cached_property
    def key(self) -> object:
        """What tells drafts apart."""
        sides = zip(self.parts, self.shares, strict=True)
        return tuple((part.key, share) for part, share in sides), self.state

    @property
    def ops(self) -> int:
        """About as many ops as its program has; long ones repeat themselves and are kept short."""
        return sum(
            min(share, 64) * (2 * sum(part.layers) + 4 * len(part.layers))
            for part, share in zip(self.parts, self.shares, strict=True)
        )

    @property
    def divided(self) -> bool:
        """Whether its tensor groups divide sequences."""
        return any(post.divided for post in self.all_posts)

    @property
    def all_posts(self) -> Iterator[Post]:
        return (post for part in self.parts for shape in part.posts for post in shape)

    def used(self, pools: int) -> tuple[int, ...]:
        """How many devices of each pool it takes."""
        return used_of(tuple(self.all_posts), pools)


def served(works: Sequence[StageWork], micro_batches: int) -> tuple[tuple[int, ...], ...]:
    """Each micro-batch to the member that is through with it first."""
    if len(works) == 1:
        return (tuple(range(micro_batches)),)
    shares: list[list[int]] = [[] for _ in works]
    heap = [(work.busy_s, number) for number, work in enumerate(works)]
    heapify(heap)
    for micro_batch in range(micro_batches):
        number = heap[0][1]
        shares[number].append(micro_batch)
        heapreplace(heap, ((len(shares[number]) + 1) * works[number].busy_s, number))
    return tuple(map(tuple, shares))


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
        *,
        holders: tuple[Shape, ...] = (),
        layers: tuple[int, ...] | None = None,
        recovery: Recoveries | None = None,
    ) -> MembersPart | None:
        """The part of stages with these members; `recovery` and `layers`: where they are given.
        None where it does not fit."""
        stages, size = self.stages, self.micro_batch
        holders = holders or ((),) * len(shapes)
        cut = layers or cut_of(
            [row for row, _ in self._held(shapes, holders)], stages.job.model.spec.layers
        )
        if cut is None:
            return None
        works: list[tuple[StageWork, ...]] = []
        for s, (count, members) in enumerate(zip(cut, shapes, strict=True)):
            ends = s == 0, s == len(shapes) - 1
            if recovery is None:
                held = [row[count] for row in self._rows_of(shapes, holders, s)]
            else:
                held = [
                    stages.work(post, size, count, *ends, mode)
                    for post, mode in zip(members, recovery[s], strict=True)
                ]
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
        return MembersPart(shapes, holders, cut, tuple(works), (*messages_s, 0.0), size)

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
