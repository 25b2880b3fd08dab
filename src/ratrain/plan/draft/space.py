"""What moves make: drafts of replicas whose layers, shares and sizes may be given or left open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ratrain.plan.draft.clock import StageClock
from ratrain.plan.draft.draft import Draft, shared, shares_of
from ratrain.plan.draft.parts import Part, part_of
from ratrain.plan.draft.pools import FEW, Pipeline, Post, Shape, pipeline_of
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode, divisors_of
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.sizes import trains_tied
from ratrain.plan.price.kind_speed import LARGEST_MICRO_BATCH
from ratrain.program.skeletons import SKELETONS


class Side(NamedTuple):
    """A replica of a draft. `layers`, `share`: as the search has them best, where they are None."""

    members: Pipeline
    micro_batch: int
    layers: tuple[int, ...] | None = None
    share: int | None = None

    @property
    def shape(self) -> Shape:
        """The first member of each stage."""
        return tuple(stage.computing[0] for stage in self.members)


Drafts = Iterator[Draft | None]
"""What a move makes; None in place of a draft that cannot be."""


class Space:
    """The drafts of a job."""

    def __init__(self, stages: Stages, states: Sequence[StateMode]) -> None:
        self.stages, self.states = stages, states
        self.counts = tuple(len(pool.devices) for pool in stages.pools)
        self.part = lru_cache(maxsize=1 << 16)(self._part)
        self.fastest_part = lru_cache(maxsize=1 << 16)(self._fastest_part)
        self.clock = StageClock(stages)
        self.members_states = _of_members(stages, states)

    @property
    def may_have_members(self) -> bool:
        """Whether stages with several members are looked at."""
        return bool(self.members_states) and sum(self.counts) <= FEW

    @property
    def sequences(self) -> int:
        return self.stages.job.batch.sequences

    def _part(
        self,
        members: Pipeline,
        micro_batch: int,
        data: int,
        state: StateMode,
        layers: tuple[int, ...] | None = None,
    ) -> Part | None:
        if not 0 < len(members) <= self.stages.job.model.spec.layers:
            return None
        if not 0 < micro_batch <= min(LARGEST_MICRO_BATCH, self.sequences):
            return None
        return part_of(self.stages, members, micro_batch, data, state, layers)

    def _fastest_part(
        self, members: Pipeline, sequences: int, data: int, state: StateMode
    ) -> Part | None:
        """A pipeline with so many sequences in the micro-batch in which it is fastest; None where
        it fits in none."""
        made = (self.part(members, size, data, state) for size in divisors_of(sequences))
        fitting = (part for part in made if part is not None)
        return min(
            fitting, key=lambda part: part.step_s(sequences // part.micro_batch), default=None
        )

    def draft(self, sides: Sequence[Side], state: StateMode) -> Draft | None:
        """The draft of these replicas; None where there are not so many devices, one does not fit,
        or the batch cannot be shared so."""
        if not sides or not self._is_room(sides):
            return None
        data = len(sides)
        parts = [self.part(s.members, s.micro_batch, data, state, s.layers) for s in sides]
        fitting = [part for part in parts if part is not None]
        if len(fitting) < len(parts):
            return None
        shares = [side.share for side in sides if side.share is not None]
        if len(shares) < len(sides):
            made = shares_of(fitting, self.sequences)
            return None if made is None else self.made(fitting, made, state)
        if min(shares) < 1 or self._taken(sides) != self.sequences:
            return None
        return self.made(fitting, shares, state)

    def made(self, parts: Sequence[Part], shares: Sequence[int], state: StateMode) -> Draft | None:
        """The draft of these parts and shares; None where members cannot share states so, or one
        has nothing to compute."""
        if any(part.has_members for part in parts) and not self._can_serve(parts, shares, state):
            return None
        return shared(self.stages, parts, shares, state)

    def _can_serve(self, parts: Sequence[Part], shares: Sequence[int], state: StateMode) -> bool:
        """Whether members may share states so, and every one that is to compute has something
        to."""
        skeleton = SKELETONS[self.stages.strategy.skeleton]
        return state in self.members_states and all(
            share >= part.fewest
            and skeleton.takes(share, len(part.members), 1)
            and all(mine for of_stage in part.serves(share) for mine in of_stage)
            for part, share in zip(parts, shares, strict=True)
        )

    def _taken(self, sides: Sequence[Side]) -> int:
        return sum(side.micro_batch * (side.share or 0) for side in sides)

    def _is_room(self, sides: Sequence[Side]) -> bool:
        used = [0] * len(self.counts)
        for side in sides:
            for stage in side.members:
                for post in stage.posts:
                    used[post.pool] += post.tensor
        return all(taken <= count for taken, count in zip(used, self.counts, strict=True))


def sides_of(draft: Draft) -> list[Side]:
    """The replicas of a draft, with all that they are."""
    return [
        Side(part.members, part.micro_batch, part.layers, share)
        for part, share in zip(draft.parts, draft.shares, strict=True)
    ]


def _of_members(stages: Stages, states: Sequence[StateMode]) -> list[StateMode]:
    """The ways of sharing states, the fastest first, that stages with members know: the first, and
    those that need less memory. None where their copies of tied matrices would be in many places.
    """
    if trains_tied(stages.job):
        return []
    usable = [
        state
        for state in states
        if (state.sharding < 3 or stages.strategy.gathers_once) and not state.sharded_gradients
    ]
    return [*usable[:1], *(s for s in usable[1:] if s.sharding > usable[0].sharding)]


def sorts_of(draft: Draft) -> list[list[int]]:
    """The places of replicas that are alike, together."""
    places: dict[object, list[int]] = {}
    for place, side in enumerate(zip(draft.parts, draft.shares, strict=True)):
        places.setdefault(side, []).append(place)
    return list(places.values())


def leaner(space: Space, draft: Draft, ranks: Sequence[int]) -> Draft | None:
    """The draft with the next recovery mode on members whose memory is short; None where one has no
    leaner mode, or computes nothing. `ranks`: of the program, which counts parts that are alike
    once."""
    sides = list(zip(draft.parts, draft.shares, strict=True))
    made: dict[tuple[Part, int], Part] = {side: side[0] for side in sides}
    places = [
        (side, stage, member)
        for side in made
        for stage, posts in enumerate(side[0].posts)
        for member in range(len(posts))
    ]
    for rank in ranks:
        side, stage, member = places[rank]
        part = _leaner(space.stages, made[side], stage, member)
        if part is None:
            return None
        made[side] = part
    return space.made([made[side] for side in sides], draft.shares, draft.state)


def _leaner(stages: Stages, part: Part, stage: int, member: int) -> Part | None:
    """The part with the next recovery mode on a member of a stage."""
    works = part.works[stage]
    if member >= len(works):
        return None
    place = stages.modes.index(works[member].recovery) + 1
    if place >= len(stages.modes):
        return None
    ends = stage == 0, stage == len(part.members) - 1
    post, layers = part.posts[stage][member], part.layers[stage]
    lean = stages.work(post, part.micro_batch, layers, *ends, stages.modes[place])
    of_stage = (*works[:member], lean, *works[member + 1 :])
    return replace(part, works=(*part.works[:stage], of_stage, *part.works[stage + 1 :]))


def of_plan(stages: Stages, plan: Plan) -> Draft | None:
    """The draft of a plan of alike replicas; None where drafts cannot say it."""
    layout = plan.layout
    if layout.virtual > 1:
        return None
    pool_of = {d.index: n for n, pool in enumerate(stages.pools) for d in pool.devices}
    parts = [
        part_of(
            stages,
            pipeline_of(
                tuple(
                    Post(
                        pool_of[groups[stage][0].index],
                        layout.tensor,
                        layout.sequence_parallel,
                    )
                    for stage in range(layout.pipeline)
                )
            ),
            plan.alike.micro_batch,
            layout.data,
            plan.mode,
            plan.alike.layers,
        )
        for groups in plan.by_number
    ]
    fitting = [part for part in parts if part is not None]
    if len(fitting) < len(parts):
        return None
    return shared(stages, fitting, [plan.alike.micro_batches] * layout.data, plan.mode)
