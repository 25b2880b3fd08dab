"""The search among drafts: seeds, priced at the grain of stages; the best of them are changed by
every move (`search.moves`), and again, until nothing gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from itertools import islice, pairwise, permutations, product
from math import inf
from operator import attrgetter

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.pools import (
    Pipeline,
    Post,
    Shape,
    StageMembers,
    in_division,
    pipeline_of,
    tensor_degrees,
)
from ratrain.plan.draft.space import Side, Space
from ratrain.plan.layout.enumerate import StateMode, divisions_of
from ratrain.plan.price.kind_speed import kind_speed
from ratrain.plan.search import limits
from ratrain.plan.search.limits import Effort
from ratrain.plan.search.moves import changed

Priced = tuple[float, Draft]


class Beam:
    """A search under way. `time_s`: what ranks a draft; `enough`: whether no more is to be
    timed."""

    def __init__(
        self,
        space: Space,
        effort: Effort,
        time_s: Callable[[Draft], float],
        enough: Callable[[], bool],
    ) -> None:
        self._space, self._effort, self._time_s, self._enough = space, effort, time_s, enough
        self.passed_over = False
        """Whether a draft was made that is not allowed."""

    def best(self, starts: Iterable[Draft], allowed: Callable[[Draft], bool]) -> list[Priced]:
        """The drafts that were priced, the fastest first."""
        known: dict[object, Priced] = {}
        begun = dict[object, Draft]()
        for draft in self._seeds():
            if draft.key not in begun and self._is_allowed(draft, allowed):
                begun[draft.key] = draft
        best = [*starts]
        for several in (False, True):  # what is estimated of members is a bound
            of_class = [draft for draft in begun.values() if draft.has_members is several]
            for key in ("estimate_s", "alone_s"):
                best += nsmallest(self._effort.seeds, of_class, key=attrgetter(key))
        self._price(best, known, allowed, inf)
        polished, looked = set[object](), set[object]()
        for _ in range(self._effort.rounds):
            front = self._front(known, limits.POLISHED * self._effort.width)
            for draft in (*front, *_of_each_count(known)):
                if draft.key not in polished:
                    polished.add(draft.key)
                    self._price(changed(self._space, draft, polishing=True), known, allowed, inf)
            beam = self._front(known, self._effort.width)
            new = [draft for draft in beam if draft.key not in looked]
            if not new or self._enough():
                break
            last_s = known[beam[-1].key][0] if len(beam) == self._effort.width else inf
            for draft in new:
                looked.add(draft.key)
                self._price(self._near(draft, known), known, allowed, last_s)
        return sorted(known.values(), key=_first)

    def _front(self, known: dict[object, Priced], width: int) -> list[Draft]:
        """The fastest drafts, a few of each family."""
        families, front = Counter[object](), list[Draft]()
        for _, draft in sorted(known.values(), key=_first):
            if len(front) == width:
                break
            families[draft.family] += 1
            if families[draft.family] <= limits.BEAM_ALIKE:
                front.append(draft)
        return front

    def _price(
        self,
        drafts: Iterable[Draft],
        known: dict[object, Priced],
        allowed: Callable[[Draft], bool],
        last_s: float,
    ) -> None:
        """Times those that are new, allowed, and may take less than so long."""
        for draft in drafts:
            may_be = draft.key not in known and draft.alone_s * limits.LEAST_ALONE <= last_s
            if may_be and self._is_allowed(draft, allowed):
                known[draft.key] = self._time_s(draft), draft

    def _near(self, draft: Draft, known: dict[object, Priced]) -> list[Draft]:
        """The changes of a draft that are timed: those of the least estimate, and those whose
        slowest replica takes least."""
        fresh = {
            other.key: other for other in changed(self._space, draft) if other.key not in known
        }
        near = self._effort.near
        return [
            *nsmallest(near, fresh.values(), key=lambda other: other.estimate_s),
            *nsmallest(near // 2, fresh.values(), key=lambda other: other.alone_s),
        ]

    def _is_allowed(self, draft: Draft, allowed: Callable[[Draft], bool]) -> bool:
        if allowed(draft):
            return True
        self.passed_over = True
        return False

    def _seeds(self) -> Iterator[Draft]:
        """Drafts to begin with: with states shared as is fastest, in each way where memory is
        short."""
        space = self._space
        degrees = {t for pool in space.stages.pools for t in tensor_degrees(space.stages.job, pool)}
        division = divisions_of(space.stages.job, degrees)
        for state in space.states:
            made = [draft for divided in division for draft in seeds(space, divided, state)]
            yield from made
            if any(len(draft.parts) > 1 for draft in made):
                return


def _of_each_count(known: dict[object, Priced]) -> list[Draft]:
    """The fastest draft of each number of replicas: shares and sizes may make the most of one that
    is far behind with those of its seed."""
    fastest: dict[int, Draft] = {}
    for _, draft in sorted(known.values(), key=_first):
        fastest.setdefault(len(draft.parts), draft)
    return [*fastest.values()]


def _first(entry: Priced) -> float:
    return entry[0]


def seeds(space: Space, divided: bool, state: StateMode) -> Iterator[Draft]:
    """Each grid in micro-batches of each size."""
    grids = dict.fromkeys(
        tuple(in_division(pipeline, divided) for pipeline in grid) for grid in _grids(space)
    )
    for grid, size in product(grids, limits.SEED_SIZES):
        if space.sequences % size == 0:
            draft = space.draft([Side(pipeline, size) for pipeline in grid], state)
            if draft is not None:
                yield draft


def _grids(space: Space) -> Iterator[list[Pipeline]]:
    """Each device or tensor group a replica; pipelines through all; the slowest left out; some
    pools device by device beside pipelines through the others; on few devices pipelines whose
    stages have several members."""
    job, pools = space.stages.job, space.stages.pools
    by_speed = sorted(range(len(pools)), key=lambda n: kind_speed(job, pools[n].kind).layer_s)
    degrees = [tensor_degrees(job, pool) for pool in pools]
    for widths in islice(product(*degrees), limits.WIDTHS):
        wide = [_packed(space, pool, most) for pool, most in enumerate(widths)]
        every = [post for pool in by_speed for post in wide[pool]]
        for kept in range(1, len(every) + 1):
            fast = every[:kept]
            for shapes in (
                [(post,) for post in fast],
                [tuple(fast)],
                [tuple(fast[::-1])],
                [(fast[0],), *([tuple(fast[1:])] if kept > 1 else [])],
            ):
                yield [*map(pipeline_of, shapes)]
            if space.may_have_members:
                for stages in range(2, min(kept - 1, limits.FOLDED) + 1):
                    yield [tuple(StageMembers(tuple(fast[s::stages])) for s in range(stages))]
                    ends = [kept * s // stages for s in range(stages + 1)]
                    runs = [tuple(fast[a:b]) for a, b in pairwise(ends)]
                    for way in (runs, runs[::-1]):
                        yield [tuple(map(StageMembers, way))]
        for order in islice(permutations(range(len(pools))), limits.POOL_ORDERS):
            for alone in range(len(pools)):
                for shapes in _pipelines(wide, order[:alone], order[alone:]):
                    yield [*map(pipeline_of, shapes)]


def _pipelines(
    wide: list[list[Post]], alone: tuple[int, ...], together: tuple[int, ...]
) -> Iterator[list[Shape]]:
    """Equally many devices of each of some pools in each pipeline; the others by themselves, a
    pipeline of each pool, and left out. And one device of each pool in a pipeline, all others left
    out."""
    beside: list[list[Shape]] = [[]]
    if alone:
        beside.append([(post,) for pool in alone for post in wide[pool]])
        beside.append([tuple(wide[pool]) for pool in alone])
    for replicas in range(1, max(len(wide[pool]) for pool in together) + 1):
        shapes = [
            tuple(post for pool in together for post in wide[pool][number::replicas])
            for number in range(replicas)
        ]
        if all(shapes):
            yield from ([*others, *shapes] for others in beside)
    for replicas in range(1, min(len(wide[pool]) for pool in together) + 1):
        yield [tuple(wide[pool][number] for pool in together) for number in range(replicas)]


def _packed(space: Space, pool: int, most: int) -> list[Post]:
    """A pool as tensor groups of at most so many devices."""
    left, posts = space.counts[pool], list[Post]()
    for degree in sorted(tensor_degrees(space.stages.job, space.stages.pools[pool]), reverse=True):
        if degree <= most:
            posts += [Post(pool, degree)] * (left // degree)
            left %= degree
    return posts
