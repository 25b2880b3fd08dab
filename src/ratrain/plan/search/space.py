"""What moves make: drafts of replicas whose layers, shares and sizes may be given or left open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.plan import Plan
from ratrain.plan.price.kind_speed import LARGEST_MICRO_BATCH
from ratrain.plan.search.draft import Draft, shared, shares_of
from ratrain.plan.search.parts import Part, part_of
from ratrain.plan.search.pools import Post, Shape
from ratrain.plan.search.stages import Stages


class Side(NamedTuple):
    """A replica of a draft. `layers`, `share`: as the search has them best, where they are None."""

    shape: Shape
    micro_batch: int
    layers: tuple[int, ...] | None = None
    share: int | None = None


class Space:
    """The drafts of a job."""

    def __init__(self, stages: Stages, states: Sequence[StateMode]) -> None:
        self.stages, self.states = stages, states
        self.counts = tuple(len(pool.devices) for pool in stages.pools)
        self.part = lru_cache(maxsize=1 << 16)(self._part)

    @property
    def sequences(self) -> int:
        return self.stages.job.batch.sequences

    def _part(
        self,
        shape: Shape,
        micro_batch: int,
        data: int,
        state: StateMode,
        layers: tuple[int, ...] | None = None,
    ) -> Part | None:
        if not 0 < len(shape) <= self.stages.job.model.spec.layers:
            return None
        if not 0 < micro_batch <= min(LARGEST_MICRO_BATCH, self.sequences):
            return None
        return part_of(self.stages, shape, micro_batch, data, state, layers)

    def draft(self, sides: Sequence[Side], state: StateMode) -> Draft | None:
        """The draft of these replicas; None where there are not so many devices, one does not fit,
        or the batch cannot be shared so."""
        if not sides or not self._is_room(sides):
            return None
        parts = [self.part(s.shape, s.micro_batch, len(sides), state, s.layers) for s in sides]
        fitting = [part for part in parts if part is not None]
        if len(fitting) < len(parts):
            return None
        shares = [side.share for side in sides if side.share is not None]
        if len(shares) < len(sides):
            made = shares_of(fitting, self.sequences)
            return None if made is None else shared(self.stages, fitting, made, state)
        if min(shares) < 1 or self._taken(sides) != self.sequences:
            return None
        return shared(self.stages, fitting, shares, state)

    def _taken(self, sides: Sequence[Side]) -> int:
        return sum(side.micro_batch * (side.share or 0) for side in sides)

    def _is_room(self, sides: Sequence[Side]) -> bool:
        used = [0] * len(self.counts)
        for side in sides:
            for post in side.shape:
                used[post.pool] += post.tensor
        return all(taken <= count for taken, count in zip(used, self.counts, strict=True))


def sides_of(draft: Draft) -> list[Side]:
    """The replicas of a draft, with all that they are."""
    return [
        Side(part.shape, part.micro_batch, part.layers, share)
        for part, share in zip(draft.parts, draft.shares, strict=True)
    ]


def sorts_of(draft: Draft) -> list[list[int]]:
    """The places of replicas that are alike, together."""
    places: dict[object, list[int]] = {}
    for place, side in enumerate(zip(draft.parts, draft.shares, strict=True)):
        places.setdefault(side, []).append(place)
    return list(places.values())


def replaced(sides: Sequence[Side], changes: Mapping[int, Sequence[Side]]) -> Iterator[Side]:
    """The replicas with others in these places, or none."""
    for place, side in enumerate(sides):
        yield from changes.get(place, (side,))


def leaner(stages: Stages, draft: Draft, ranks: Sequence[int]) -> Draft | None:
    """The draft with the next recovery mode on stages whose memory is short; None where one has no
    leaner mode. `ranks`: of the program, which counts parts that are alike once."""
    sides = list(zip(draft.parts, draft.shares, strict=True))
    made: dict[tuple[Part, int], Part] = {side: side[0] for side in sides}
    places = [(side, stage) for side in made for stage in range(len(side[0].shape))]
    for rank in ranks:
        key, stage = places[rank]
        work = made[key].works[stage]
        place = stages.modes.index(work.recovery) + 1
        if place >= len(stages.modes):
            return None
        last = len(made[key].shape) - 1
        lean = stages.work(
            made[key].shape[stage],
            made[key].micro_batch,
            made[key].layers[stage],
            stage == 0,
            stage == last,
            stages.modes[place],
        )
        works = (*made[key].works[:stage], lean, *made[key].works[stage + 1 :])
        made[key] = replace(made[key], works=works)
    return shared(stages, [made[side] for side in sides], draft.shares, draft.state)


def of_plan(stages: Stages, plan: Plan) -> Draft | None:
    """The draft of a plan of alike replicas; None where drafts cannot say it."""
    layout = plan.layout
    if layout.virtual > 1:
        return None
    pool_of = {d.index: n for n, pool in enumerate(stages.pools) for d in pool.devices}
    parts = [
        part_of(
            stages,
            tuple(
                Post(
                    pool_of[groups[stage][0].index],
                    layout.tensor,
                    layout.sequence_parallel,
                )
                for stage in range(layout.pipeline)
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
