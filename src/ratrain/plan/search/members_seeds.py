"""The drafts with several members in a stage that the search begins with.

First the pipelines that any numbers of posts can be: posts spread over stages in every way, the
fewest stages first, ranked by their busiest stage. Of those on the same devices the best few are
kept. Then pipelines are put together to replicas that share the batch, like water that levels (see
`search.draft`). A pipeline or a set that leaves devices idle is a draft like any other. Where
memory binds, idle devices also hold a stage without computing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from heapq import nsmallest
from itertools import chain, combinations, islice, pairwise, product
from typing import NamedTuple

import numpy as np

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.parts import Part, Quick, quick
from ratrain.plan.draft.pools import (
    FEW,
    Pipeline,
    Post,
    Shape,
    StageMembers,
    in_division,
    tensor_degrees,
    used_of,
)
from ratrain.plan.draft.space import Side, Space
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode, divisions_of, divisors_of
from ratrain.plan.price.kind_speed import LARGEST_MICRO_BATCH
from ratrain.plan.search import limits
from ratrain.program.units import Ints
from ratrain.simulate.costs import Floats

Posts = tuple[tuple[Post, int], ...]
"""Posts, and how many of each."""
Used = tuple[int, ...]
"""Devices of each pool."""


def members_seeds(space: Space, bar_s: float) -> Iterator[Draft]:
    """Of each sort of idea the best drafts, whose busiest stages may take less than `bar_s`; with
    states shared as is fastest, and where memory binds in leaner ways."""
    stages = space.stages
    if sum(space.counts) > FEW:
        return
    degrees = {t for pool in stages.pools for t in tensor_degrees(stages.job, pool)}
    division = divisions_of(stages.job, degrees)
    sizes = [size for size in divisors_of(space.sequences) if size <= LARGEST_MICRO_BATCH]
    for state in space.members_states:
        every = [Ideas(space, size, state, divided) for divided in division for size in sizes]
        ideas = [(idea, of_size) for of_size in every for idea in of_size.best(bar_s)]
        for sort in {idea.sort for idea, _ in ideas}:
            of_sort = (each for each in ideas if each[0].sort == sort)
            best = nsmallest(limits.MEMBERS_SEEDS, of_sort, key=lambda each: each[0].time_s)
            yield from filter(None, (of_size.draft(idea) for idea, of_size in best))
        if not any(of_size.memory_binds for of_size in every):
            return


class Idea(NamedTuple):
    """Pipelines before they are parts, and about when all of them end. `sort`: how many there are;
    0 for one of all devices in one degree."""

    time_s: float
    sort: int
    pipelines: tuple[Pipeline, ...]


def _ramp_s(part: Part) -> float:
    """What the first micro-batch of a pipeline takes beside its slot."""
    each_s = zip(part.works, part.stage_s, strict=True)
    return max(0.0, sum(len(works) * stage_s for works, stage_s in each_s) - part.slot_s)


class Ideas:
    """The ideas of a job for micro-batches of one size, with states shared so, with sequence
    parallelism in tensor groups or without."""

    def __init__(self, space: Space, micro_batch: int, state: StateMode, divided: bool) -> None:
        stages = self._stages = space.stages
        self._divided, self._state, self._size = divided, state, micro_batch
        self._space, self._batches = space, space.sequences // micro_batch
        self._counts = tuple(len(pool.devices) for pool in stages.pools)
        self.memory_binds = False
        """Whether a pipeline that was looked at does not fit, or recovers."""

    def best(self, bar_s: float) -> Iterator[Idea]:
        """Those whose busiest stages may take less than `bar_s`."""
        library: list[Part] = []
        for posts in _every_posts(self._stages):
            kept = self._of_posts(posts, bar_s)
            library += kept[: limits.PIPELINES_KEPT]
            sort = 0 if self._is_plain(posts) else 1
            for pipeline in kept:
                time_s = self._batches * pipeline.slot_s + _ramp_s(pipeline)
                if pipeline.has_members and self._batches * pipeline.slot_s < bar_s:
                    yield Idea(time_s, sort, (pipeline.members,))
        yield from self._sets(library, bar_s)

    def draft(self, idea: Idea) -> Draft | None:
        """The draft of an idea; None where it does not fit."""
        sides = [Side(members, self._size) for members in idea.pipelines]
        return self._space.draft(sides, self._state)

    def _is_plain(self, posts: Posts) -> bool:
        """Whether they are all devices in one tensor degree."""
        used = sum(post.tensor * count for post, count in posts)
        return used == sum(self._counts) and len({post.tensor for post, _ in posts}) == 1

    def _of_posts(self, posts: Posts, bar_s: float) -> list[Part]:
        """The pipelines of exactly these posts, the best first; all of them where these are all
        devices."""
        every_post = tuple(post for post, count in posts for _ in range(count))
        used = used_of(every_post, len(self._counts))
        rest = tuple(count - taken for count, taken in zip(self._counts, used, strict=True))
        is_whole = not any(rest)
        of_rest = self._rate(rest)
        if self._rate_of(posts) + of_rest < self._batches / bar_s:
            return []
        most = limits.SPREADS if self._is_plain(posts) else limits.FEW_SPREADS
        every: list[Part] = []
        layers = self._stages.job.model.spec.layers
        for shapes in _spreads(posts, layers, most):
            posted = tuple(StageMembers(in_division(shape, self._divided)) for shape in shapes)
            for members, known in self._held(posted, rest):
                if known is None or 1 / known.slot_s + of_rest < self._batches / bar_s:
                    continue
                part = self._space.part(members, self._size, 1 if is_whole else 2, self._state)
                every += [] if part is None else [part]
        share = self._batches * self._rate(used) / self._rate(self._counts)
        every.sort(key=lambda part: share * part.slot_s + _ramp_s(part))
        return every if is_whole else every[: 2 * limits.PIPELINES_KEPT]

    def _held(self, members: Pipeline, rest: Used) -> Iterator[tuple[Pipeline, Quick | None]]:
        """Nobody beside the members; where their memory is short, and states are shared among all
        who hold a stage, also all devices that are left, at each stage in turn."""
        of = self._size, 2 if any(rest) else 1, self._state
        alone = quick(self._stages, members, *of)
        yield members, alone
        if alone is not None and not alone.recovers:
            return
        self.memory_binds = True
        if not any(rest) or self._state.sharding not in (1, 2):
            return
        spare = tuple(Post(pool, 1) for pool, count in enumerate(rest) for _ in range(count))
        for s, stage in enumerate(members):
            held = (*members[:s], StageMembers(stage.computing, spare), *members[s + 1 :])
            yield held, quick(self._stages, held, *of)

    def _rate_of(self, posts: Posts) -> float:
        """Micro-batches a second of posts if none ever waits, embedding and head not counted; 0
        where one is not priced."""
        rate = 0.0
        for post, count in posts:
            seen = Post(post.pool, post.tensor, self._divided and post.tensor > 1)
            if not self._stages.is_priced(seen, self._size):
                return 0.0
            layer = self._stages.seconds(seen, self._size)[1]
            rate += count / (layer.forward_s + layer.backward_s)
        return rate / self._stages.job.model.spec.layers

    def _rate(self, used: Used) -> float:
        """Micro-batches a second of these devices if none ever waits, embedding and head not
        counted."""
        return self._stages.speed_of(used) / self._stages.job.model.spec.layers / self._size

    def _sets(self, library: Sequence[Part], bar_s: float) -> Iterator[Idea]:
        """Several pipelines, one of members at least."""
        shared = [each for each in library if not any(stage.holding for stage in each.members)]
        if not shared:
            return
        table = _Table(shared, self._counts, self._rate)
        sets = [(number,) for number in range(len(shared))]
        for _ in range(limits.MOST_REPLICAS - 1):
            longer = [
                made for chosen in sets for made in table.longer(chosen, self._batches, bar_s)
            ]
            sets = [chosen for _, chosen in nsmallest(limits.SETS_KEPT, longer)]
            for chosen in sets:
                pipelines = [shared[number] for number in chosen]
                time_s = _level_s(self._batches, pipelines)
                if time_s < bar_s and any(each.has_members for each in pipelines):
                    yield Idea(time_s, 2, tuple(each.members for each in pipelines))


class _Table:
    """Pipelines as columns, and which of them can be put to a set."""

    def __init__(
        self, pipelines: Sequence[Part], counts: Used, rate: Callable[[Used], float]
    ) -> None:
        used = [used_of(tuple(chain(*each.posts)), len(counts)) for each in pipelines]
        self._used: Ints = np.array(used, dtype=np.int64)
        self._rates: Floats = np.array([1 / each.slot_s for each in pipelines])
        self._ramps: Floats = self._rates * np.array([_ramp_s(each) for each in pipelines])
        self._counts: Ints = np.array(counts, dtype=np.int64)
        alone = [tuple(int(n == pool) for n in range(len(counts))) for pool in range(len(counts))]
        self._rate_of_one: Floats = np.array([rate(used) for used in alone])

    def longer(
        self, chosen: tuple[int, ...], batches: int, bar_s: float
    ) -> Iterator[tuple[float, tuple[int, ...]]]:
        """The set with each pipeline from its last one on; and about when it ends, if the devices
        that are left join it at their best. Not where there are not so many devices."""
        places = list(chosen)
        first = places[-1]
        rest: Ints = self._counts - self._used[places].sum(axis=0) - self._used[first:]
        rates = self._rates[places].sum() + self._rates[first:] + rest @ self._rate_of_one
        work = batches + self._ramps[places].sum() + self._ramps[first:]
        for further in np.flatnonzero((rest.min(axis=1) >= 0) & (work < bar_s * rates)).tolist():
            yield float(work[further] / rates[further]), (*chosen, first + further)


def _level_s(batches: int, chosen: Sequence[Part]) -> float:
    """When pipelines end that share so many micro-batches."""
    rate = sum(1 / each.slot_s for each in chosen)
    level_s = (batches + sum(_ramp_s(each) / each.slot_s for each in chosen)) / rate
    return max(level_s, *(_ramp_s(each) + each.slot_s for each in chosen))


def _every_posts(stages: Stages) -> Iterator[Posts]:
    """Posts on any numbers of devices, all devices first."""
    counts = [len(pool.devices) for pool in stages.pools]
    any_number = sum(counts) <= limits.FEWEST
    of_pools = [
        list(_posts_of(number, tensor_degrees(stages.job, pool), len(pool.devices), any_number))
        for number, pool in enumerate(stages.pools)
    ]
    for parts in product(*of_pools):
        posts = tuple(each for part in parts for each in part)
        if posts:
            yield posts


def _posts_of(pool: int, degrees: Sequence[int], devices: int, any_number: bool) -> Iterator[Posts]:
    """Posts of a pool. On many devices all, half or none of them, in one degree."""
    if not any_number:
        for tensor in degrees:
            most = devices // tensor
            for count in sorted({most, most // 2, most - most // 2} - {0}, reverse=True):
                yield ((Post(pool, tensor), count),)
        yield ()
        return
    for counts in product(*(range(devices // tensor, -1, -1) for tensor in degrees)):
        if sum(count * tensor for count, tensor in zip(counts, degrees, strict=True)) <= devices:
            yield tuple(
                (Post(pool, tensor), count)
                for count, tensor in zip(counts, degrees, strict=True)
                if count > 0
            )


@lru_cache(maxsize=1024)
def _spreads(posts: Posts, layers: int, most: int) -> tuple[tuple[Shape, ...], ...]:
    """So many ways to spread posts over stages. Members of a single stage would be replicas."""
    return tuple(islice(_every_spread(posts, layers), most))


def _every_spread(posts: Posts, layers: int) -> Iterator[tuple[Shape, ...]]:
    total = sum(count for _, count in posts)
    for depth in range(1 if total == 1 else 2, min(layers, total) + 1):
        for spread in product(*(list(_divided(count, depth)) for _, count in posts)):
            shapes = tuple(
                tuple(
                    post for (post, _), of in zip(posts, spread, strict=True) for _ in range(of[s])
                )
                for s in range(depth)
            )
            if min(map(len, shapes)) > 0:
                yield shapes


def _divided(count: int, stages: int) -> Iterator[tuple[int, ...]]:
    """A number as a sum of so many, none less than 0, in every way."""
    for bars in combinations(range(count + stages - 1), stages - 1):
        ends = (-1, *bars, count + stages - 1)
        yield tuple(b - a - 1 for a, b in pairwise(ends))
