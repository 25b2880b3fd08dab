"""Drafts in which kinds of device share stages: one pipeline, several members in a stage.

A member is a rank or a tensor group of one pool. Micro-batches go to the members of each stage in
proportion to their speed, so that one may change its kind where stages meet (the stage-major form).
A stage of members with f + b seconds each works like one of

    1 / sum of 1 / (f + b)

seconds a micro-batch, for which layers are cut as for any pipeline. All tensor degrees of a draft
are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from itertools import combinations, islice, pairwise, product
from math import inf

from ratrain.cost.collectives import ring_half
from ratrain.plan.enumerate import StateMode, kinds_of_block
from ratrain.plan.sizes import gathered_bytes_per_param
from ratrain.plan.unequal_parts import cut_of
from ratrain.plan.unequal_pools import Post, Shape, divisions_of, in_division, tensor_degrees
from ratrain.plan.unequal_stages import Row, Stages, StageWork
from ratrain.program.replicas import Recovery

SPREADS = 400
"""Ways to spread the devices over stages that are drafted for a micro-batch, the fewest stages
first."""


@dataclass(frozen=True)
class MembersDraft:
    """A pipeline whose stages have members, before it has devices. `shapes`: the posts of each
    stage's members."""

    shapes: tuple[Shape, ...]
    layers: tuple[int, ...]
    works: tuple[tuple[StageWork, ...], ...]  # of each member of each stage
    micro_batch: int
    micro_batches: int
    state: StateMode
    least_s: float
    """What its compute takes at least"""
    estimate_s: float

    @property
    def key(self) -> object:
        """What tells drafts apart."""
        sizes = self.micro_batch, self.micro_batches
        return self.shapes, self.layers, self.recovery, sizes, self.state

    @property
    def ops(self) -> int:
        """About as many ops as its program has; long ones repeat themselves and are kept short."""
        return min(self.micro_batches, 64) * (2 * sum(self.layers) + 4 * len(self.layers))

    @cached_property
    def serves(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For each stage the micro-batches of its members."""
        return tuple(_served(works, self.micro_batches) for works in self.works)

    @property
    def recovery(self) -> tuple[tuple[Recovery, ...], ...]:
        """Of each member of each stage."""
        return tuple(tuple(work.recovery for work in works) for works in self.works)

    @property
    def divided(self) -> bool:
        """Whether its tensor groups divide sequences."""
        return any(post.divided for shape in self.shapes for post in shape)


def members_drafts(stages: Stages, micro_batch: int, state: StateMode) -> Iterator[MembersDraft]:
    """Drafts of all devices, some way spread over two stages and more."""
    degrees = [tensor_degrees(stages.job, pool) for pool in stages.pools]
    for tensor in (each for each in degrees[0] if all(each in others for others in degrees)):
        for divided in divisions_of(stages.job, [(Post(0, tensor),)]):
            for shapes in islice(_spreads(stages, tensor), SPREADS):
                posted = tuple(in_division(shape, divided) for shape in shapes)
                draft = members_draft(stages, posted, micro_batch, state)
                if draft is not None:
                    yield draft


def _spreads(stages: Stages, tensor: int) -> Iterator[tuple[Shape, ...]]:
    """The groups of each pool spread over stages in every way, one stage with several at least."""
    counts = [len(pool.devices) // tensor for pool in stages.pools]
    for depth in range(2, min(stages.job.model.spec.layers, sum(counts) - 1) + 1):
        for spread in product(*(list(_divided(count, depth)) for count in counts)):
            shapes = tuple(
                tuple(Post(pool, tensor) for pool, of in enumerate(spread) for _ in range(of[s]))
                for s in range(depth)
            )
            if min(map(len, shapes)) > 0:
                yield shapes


def _divided(count: int, stages: int) -> Iterator[tuple[int, ...]]:
    """A number as a sum of so many, none less than 0, in every way."""
    for bars in combinations(range(count + stages - 1), stages - 1):
        ends = (-1, *bars, count + stages - 1)
        yield tuple(b - a - 1 for a, b in pairwise(ends))


def members_draft(
    stages: Stages,
    shapes: tuple[Shape, ...],
    micro_batch: int,
    state: StateMode,
    layers: tuple[int, ...] | None = None,
    recovery: Sequence[Sequence[Recovery]] | None = None,
) -> MembersDraft | None:
    """The draft of stages with these members; `recovery` and `layers`: where they are given. None
    where it does not fit, or a member would serve nothing."""
    micro_batches = stages.job.batch.sequences // micro_batch
    rows = [_rows(stages, shapes, s, micro_batch, state) for s in range(len(shapes))]
    cut = layers or cut_of([_together(of_stage) for of_stage in rows], stages.job.model.spec.layers)
    if cut is None:
        return None
    works: list[tuple[StageWork, ...]] = []
    for s, (count, of_stage) in enumerate(zip(cut, rows, strict=True)):
        held = [row[count] for row in of_stage]
        if recovery is not None:
            ends = s == 0, s == len(shapes) - 1
            held = [
                stages.work(post, micro_batch, count, *ends, mode)
                for post, mode in zip(shapes[s], recovery[s], strict=True)
            ]
        fitting = tuple(work for work in held if work is not None)
        if len(fitting) < len(held) or len(held) > micro_batches:
            return None
        works.append(fitting)
    least_s = _least_s(works, micro_batches)
    extra_s = _messages_s(stages, shapes, micro_batch) + _tail_s(stages, shapes, cut, works, state)
    draft = MembersDraft(
        shapes, cut, tuple(works), micro_batch, micro_batches, state, least_s, least_s + extra_s
    )
    return draft if all(share for shares in draft.serves for share in shares) else None


def _rows(
    stages: Stages, shapes: Sequence[Shape], stage: int, micro_batch: int, state: StateMode
) -> list[Row]:
    """The work of each member of a stage by the stage's layers. A member holds its share of the
    micro-batches that its stage has in flight, rounded up: one for each member from there on."""
    behind = sum(map(len, shapes[stage:]))
    members = shapes[stage]
    held, last = -(-behind // len(members)), stage == len(shapes) - 1
    return [
        stages.row(post, micro_batch, held, stage == 0, last, len(members), state)
        for post in members
    ]


def _together(rows: Sequence[Row]) -> Row:
    """The work of a stage whose members have these, as that of a single one."""

    def together(busy_s: Sequence[float]) -> StageWork | None:
        if inf in busy_s or 0.0 in busy_s:
            return None
        return StageWork(
            0.0, 1 / sum(1 / of_member_s for of_member_s in busy_s), 0.0, Recovery.NONE
        )

    of_layers = zip(*(row.busy_s[1 : len(row)] for row in rows), strict=True)
    return Row((None, *map(together, of_layers)))


def _served(works: Sequence[StageWork], micro_batches: int) -> tuple[tuple[int, ...], ...]:
    """Each micro-batch to the member that is through with it first."""
    shares: list[list[int]] = [[] for _ in works]
    heap = [(work.busy_s, number) for number, work in enumerate(works)]
    heapify(heap)
    for micro_batch in range(micro_batches):
        number = heap[0][1]
        shares[number].append(micro_batch)
        heapreplace(heap, ((len(shares[number]) + 1) * works[number].busy_s, number))
    return tuple(map(tuple, shares))


def _least_s(works: Sequence[Sequence[StageWork]], micro_batches: int) -> float:
    """What compute takes at least: a member computes its micro-batches one after another, between
    the first one's way to it and the last one's way back."""
    ahead_s = longest_s = 0.0
    for members in works:
        shares = _served(members, micro_batches)
        busy_s = max(len(share) * work.busy_s for share, work in zip(shares, members, strict=True))
        longest_s = max(longest_s, ahead_s + busy_s)
        ahead_s += min(work.busy_s - work.early_s for work in members)
    return longest_s


def _messages_s(stages: Stages, shapes: Sequence[Shape], micro_batch: int) -> float:
    """The first output's way to the last stage, and the last gradient's way back."""
    return 2 * sum(
        min(stages.message_s(source, target, micro_batch) for source in here for target in there)
        for here, there in pairwise(shapes)
    )


def _tail_s(
    stages: Stages,
    shapes: Sequence[Shape],
    layers: Sequence[int],
    works: Sequence[Sequence[StageWork]],
    state: StateMode,
) -> float:
    """About what reductions and gathers among members add behind the last backward."""
    embedding, layer, head = (block.params for block in kinds_of_block(stages.job))
    last, longest = len(shapes) - 1, 0.0
    for s, (members, count) in enumerate(zip(shapes, layers, strict=True)):
        if len(members) == 1:
            continue
        kinds = {stages.pools[post.pool].kind for post in members}
        weight_bytes = gathered_bytes_per_param(stages.job, kinds)
        link = stages.links.slowest(frozenset(post.pool for post in members))
        params = count * layer + (s == 0) * embedding + (s == last) * head
        whole_s, unit_s = (
            ring_half(weight_bytes * size / members[0].tensor, len(members), link).alone_s(
                link.bandwidth_bytes_per_s
            )
            for size in (params, max(layer, (s == 0) * embedding))
        )
        twice = 1 if state.sharding else 2
        work = min(works[s], key=lambda work: work.busy_s)
        longest = max(
            longest,
            max(twice * whole_s - work.backward_s, twice * unit_s)
            + (max(whole_s - work.forward_s, unit_s) if state.sharding else 0.0),
        )
    return longest


def members_changed(stages: Stages, draft: MembersDraft) -> Iterator[MembersDraft]:
    """Every draft one change away: a layer or a device in another stage, half or twice the
    micro-batch."""
    places = range(len(draft.shapes))
    size, state = draft.micro_batch, draft.state
    changes: list[MembersDraft | None] = []
    for source, target in product(places, places):
        if source == target:
            continue
        if draft.layers[source] > 1:
            layers = list(draft.layers)
            layers[source] -= 1
            layers[target] += 1
            changes.append(members_draft(stages, draft.shapes, size, state, tuple(layers)))
        for post in dict.fromkeys(draft.shapes[source]):
            shapes = [list(shape) for shape in draft.shapes]
            shapes[source].remove(post)
            shapes[target] = sorted([*shapes[target], post], key=lambda post: post.pool)
            if shapes[source]:
                moved = tuple(map(tuple, shapes))
                changes.append(members_draft(stages, moved, size, state))
    for other in (size * 2, size // 2):
        if other > 0 and stages.job.batch.sequences % other == 0:
            changes.append(members_draft(stages, draft.shapes, other, state, draft.layers))
    yield from (change for change in changes if change is not None)
