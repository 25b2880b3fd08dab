"""One replica of a draft: its posts, layers, micro-batches, and about how long they take.

A stage may have several members: each is a post that serves some of the replica's micro-batches, in
proportion to its speed, so that one may change its kind of device where stages meet (the
stage-major form). A stage of members with f + b seconds each works like one of

    1 / sum of 1 / (f + b)

seconds a micro-batch. A member may also only hold a stage: it computes nothing, and owns a part of
the optimizer's states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from itertools import accumulate, pairwise, permutations
from math import inf
from typing import NamedTuple, TypeVar

import numpy as np

from ratrain.plan.draft.pools import Post, Shape
from ratrain.plan.draft.stages import Row, Stages, StageWork
from ratrain.plan.layout.enumerate import StateMode
from ratrain.program.replicas import Recovery
from ratrain.program.units import Ints
from ratrain.simulate.costs import Floats

Seconds = TypeVar("Seconds", float, Floats)
"""Of one cut, or of each of many."""


def step_s(
    micro_batches: int,
    forwards: Sequence[Seconds],
    backwards: Sequence[Seconds],
    early: Sequence[Seconds],
    messages_s: Sequence[Seconds],
    largest: Callable[..., Seconds],
) -> Seconds:
    """The time of so many micro-batches, without what follows the last; stage by stage the seconds
    of one of them, recovery ahead of backward (`early`) in backward's, and of the message behind.
    `largest` is `max` or `largest_of_each`."""
    m, p = micro_batches, len(forwards)
    if p == 1:
        return m * (forwards[0] + backwards[0])
    waited = [b - e for b, e in zip(backwards, early, strict=True)]
    hops = [f + u + 2 * c for f, u, c in zip(forwards, waited, messages_s, strict=True)]
    zero = 0.0 * forwards[0]
    ramps = [zero, *accumulate(hops)]
    longest = come = go = zero
    for s in range(p):
        f, b, e, u, c = forwards[s], backwards[s], early[s], waited[s], messages_s[s]
        k = min(p - s, m)
        deep = ramps[p] - ramps[s + 1] + early[-1] + 2 * c if s < p - 1 else zero
        begin, end = largest(k * f + e, f + deep) - e, largest(k * b, deep + u)
        full_s, short_s = begin + (m - k) * (f + b) + end, largest(begin + k * b, k * f + end)
        stage_s = full_s if m > k else short_s
        paced_s = largest((k - 1) * come + (m - 1) * go, (m - 1) * come + (k - 1) * go)
        longest = largest(longest, ramps[s] + stage_s, ramps[s] + f + u + paced_s)
        come, go = largest(come, f, c), largest(go, b, c)
        if s < p - 1:
            loop_s = (hops[s] + forwards[s + 1] + waited[s + 1]) / 2
            longest = largest(longest, ramps[s] + m * loop_s)
    return largest(longest, ramps[p] + early[-1] + (m - 1) * largest(*messages_s))


def largest_of_each(*seconds: Floats | float) -> Floats:
    """The largest of each row of columns."""
    largest = np.asarray(seconds[0], dtype=np.float64)
    for others in seconds[1:]:
        largest = np.maximum(largest, others)
    return largest


class Member(NamedTuple):
    """A post that holds a stage beside its first member. `work`: None where it only holds it."""

    post: Post
    work: StageWork | None


@dataclass(frozen=True)
class Part:
    """A replica without its share of the step. `shape`, `works`: of the first member of each
    stage; `beside`: the others of each stage, those that compute first, or () where each has
    one."""

    shape: Shape
    micro_batch: int
    layers: tuple[int, ...]
    works: tuple[StageWork, ...]
    messages_s: tuple[float, ...]  # behind each stage; of the last, none
    beside: tuple[tuple[Member, ...], ...] = ()

    @cached_property
    def posts(self) -> tuple[Shape, ...]:
        """Of all members of each stage, those that compute first."""
        if not self.beside:
            return tuple((post,) for post in self.shape)
        return tuple(
            (post, *(member.post for member in others))
            for post, others in zip(self.shape, self.beside, strict=True)
        )

    @cached_property
    def roles(self) -> object:
        """What tells parts apart whose posts stand in other places, or only hold a stage."""
        if not self.beside:
            return self.shape
        return self.posts, tuple(map(len, self.computing))

    @cached_property
    def computing(self) -> tuple[tuple[StageWork, ...], ...]:
        """The work of each member of each stage that computes."""
        beside = self.beside or ((),) * len(self.works)
        return tuple(
            (work, *(member.work for member in others if member.work is not None))
            for work, others in zip(self.works, beside, strict=True)
        )

    @property
    def recovery(self) -> tuple[Recovery, ...]:
        """Of all members of all stages."""
        if not self.beside:
            return tuple(work.recovery for work in self.works)
        return tuple(
            mode
            for works, posts in zip(self.computing, self.posts, strict=True)
            for mode in (
                *(work.recovery for work in works),
                *[Recovery.NONE] * (len(posts) - len(works)),
            )
        )

    @property
    def fewest(self) -> int:
        """Micro-batches that it takes at least: one for each member of a stage that computes."""
        return max(map(len, self.computing)) if self.beside else 1

    @property
    def slot_s(self) -> float:
        """What each further micro-batch takes."""
        if self.beside:
            return max(self._stage_s)
        return max(*(work.busy_s for work in self.works), *self.messages_s)

    @cached_property
    def _stage_s(self) -> tuple[float, ...]:
        """What each further micro-batch takes of each stage, all of whose members are at work."""
        return tuple(1 / sum(1 / work.busy_s for work in works) for works in self.computing)

    @cached_property
    def _ahead_s(self) -> tuple[float, ...]:
        """What the first micro-batch takes at least before each stage, there and back."""
        each_s = (min(work.busy_s - work.early_s for work in works) for works in self.computing)
        return (0.0, *accumulate(each_s))[:-1]

    def step_s(self, micro_batches: int) -> float:
        """About how long this number of micro-batches takes, without what follows the last."""
        if micro_batches not in self._steps_s:
            self._steps_s[micro_batches] = (
                self._members_s(micro_batches)
                if self.beside
                else step_s(micro_batches, *self._seconds, self.messages_s, max)
            )
        return self._steps_s[micro_batches]

    def _members_s(self, micro_batches: int) -> float:
        """The same where stages have members."""
        return 2 * sum(self.messages_s) + max(
            ahead_s + micro_batches * busy_s
            for ahead_s, busy_s in zip(self._ahead_s, self._stage_s, strict=True)
        )

    def serves(self, micro_batches: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For each stage the micro-batches of its members that compute."""
        return tuple(served(works, micro_batches) for works in self.computing)

    def least_s(self, micro_batches: int) -> float:
        """What its compute takes at least: a member computes its micro-batches one after another,
        between the first one's way to it and the last one's way back. (Where its own processors
        move bytes, a wait may hide what it loses by that, and this is a little more than the
        least.)"""
        return max(
            ahead_s + max(len(m) * work.busy_s for m, work in zip(shares, works, strict=True))
            for ahead_s, shares, works in zip(
                self._ahead_s, self.serves(micro_batches), self.computing, strict=True
            )
        )

    @cached_property
    def _steps_s(self) -> dict[int, float]:
        """What was asked for: mixes, shares and changes ask the same again and again."""
        return {}

    @cached_property
    def _seconds(self) -> tuple[list[float], list[float], list[float]]:
        """Of each stage forward, backward, and what of that is recovery ahead of it."""
        works = self.works
        return (
            [work.forward_s for work in works],
            [work.backward_s for work in works],
            [work.early_s for work in works],
        )

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.micro_batch, self.layers, self.works, self.beside))

    def __hash__(self) -> int:
        return self._hash


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


def part_of(
    stages: Stages,
    shape: Shape,
    micro_batch: int,
    data: int,
    state: StateMode,
    layers: tuple[int, ...] | None = None,
) -> Part | None:
    """The part of a shape, its layers cut so that its slowest stage is as fast as can be, unless
    they are given; None where it does not fit."""
    rows = rows_of(stages, shape, micro_batch, data, state)
    cut = layers or cut_of(rows, stages.job.model.spec.layers)
    if cut is None:
        return None
    messages_s = [stages.message_s(here, there, micro_batch) for here, there in pairwise(shape)]
    if inf in messages_s:
        return None
    return _cut(Part(shape, micro_batch, (), (), (*messages_s, 0.0)), rows, cut)


def _cut(part: Part, rows: Sequence[Row], layers: tuple[int, ...]) -> Part | None:
    """The part with other layers; None where they do not fit."""
    works = tuple(row[count] for row, count in zip(rows, layers, strict=True))
    fitting = tuple(work for work in works if work is not None)
    if len(fitting) < len(works):
        return None
    return Part(part.shape, part.micro_batch, layers, fitting, part.messages_s)


def _of_depths(parts: Sequence[Part]) -> list[list[int]]:
    """The places of parts of equally many stages."""
    places: dict[int, list[int]] = {}
    for place, part in enumerate(parts):
        places.setdefault(len(part.shape), []).append(place)
    return list(places.values())


def recut(
    stages: Stages, parts: Sequence[Part], data: int, state: StateMode, micro_batches: int
) -> list[Part]:
    """The parts with single layers moved from stage to stage as long as so many micro-batches then
    take less: of cuts whose slowest stages are alike, the fill of the pipeline decides."""
    made = list(parts)
    for places in _of_depths(parts):
        alike = [parts[place] for place in places]
        if len(alike[0].shape) == 1:
            continue
        recut_alike = _recut(alike, stages, data, state, micro_batches)
        for place, part in zip(places, recut_alike, strict=True):
            made[place] = part
    return made


def _recut(
    parts: Sequence[Part], stages: Stages, data: int, state: StateMode, micro_batches: int
) -> list[Part]:
    """The same of parts of equally many stages, all at once: their cuts are rows of columns."""
    rows = [rows_of(stages, part.shape, part.micro_batch, data, state) for part in parts]
    columns = np.array([[row.columns for row in of_part] for of_part in rows])
    messages_s = np.array([part.messages_s for part in parts])
    layers: Ints = np.array([part.layers for part in parts])
    fastest_s = np.array([part.step_s(micro_batches) for part in parts])
    moves = _moves(layers.shape[1])
    active: Ints = np.arange(len(parts))  # those that the last move has made faster
    while len(active):
        cuts = layers[active, None] + moves
        times_s = _steps_s(columns[active], messages_s[active], cuts, micro_batches)
        best: Ints = times_s.argmin(axis=1)
        best_s = times_s[np.arange(len(active)), best]
        faster = np.flatnonzero(best_s < fastest_s[active] * (1 - 1e-9))
        active, best, best_s, cuts = active[faster], best[faster], best_s[faster], cuts[faster]
        layers[active], fastest_s[active] = cuts[np.arange(len(active)), best], best_s
    made: list[Part] = []
    for part, of_part, cut in zip(parts, rows, layers.tolist(), strict=True):
        other = _cut(part, of_part, tuple(cut))
        assert other is not None, "a cut that does not fit takes for ever"
        made.append(other)
    return made


def _moves(stages: int) -> Ints:
    """What each move of a layer from one stage to another adds to each stage, the sources
    first."""
    moves: Ints = np.zeros((stages * (stages - 1), stages), dtype=np.int64)
    for number, (source, target) in enumerate(permutations(range(stages), 2)):
        moves[number, source], moves[number, target] = -1, 1
    return moves


def _steps_s(columns: Floats, messages_s: Floats, cuts: Ints, micro_batches: int) -> Floats:
    """What `Part.step_s` says of many cuts of each part (parts x cuts x stages); infinite where a
    stage is left with nothing, or one does not fit. `columns`: parts x stages x sorts x layers."""
    part: Ints = np.arange(len(cuts))[:, None, None]
    stage: Ints = np.arange(cuts.shape[2], dtype=np.int64)
    forwards, backwards, early = (
        list(np.moveaxis(columns[part, stage, sort, cuts], 2, 0)) for sort in range(3)
    )
    of_messages = list(np.moveaxis(messages_s[:, None], 2, 0))
    times_s = step_s(micro_batches, forwards, backwards, early, of_messages, largest_of_each)
    fits = np.logical_and.reduce([forward_s >= 0 for forward_s in forwards])
    return np.where(fits & (cuts.min(axis=2) > 0), times_s, inf)


def layers_moved(
    layers: Sequence[int], pairs: Iterable[tuple[int, int]] | None = None
) -> Iterator[tuple[int, ...]]:
    """Every cut in which a stage holds a layer of another one's. `pairs`: of the stage that gives
    and the one that takes; any, where they are left out."""
    for source, target in pairs or permutations(range(len(layers)), 2):
        if source != target and layers[source] > 1:
            moved = list(layers)
            moved[source] -= 1
            moved[target] += 1
            yield tuple(moved)


def rows_of(
    stages: Stages, shape: Shape, micro_batch: int, data: int, state: StateMode
) -> list[Row]:
    """The work of each stage of a shape, by its layers."""
    last = len(shape) - 1
    return [
        stages.row(post, micro_batch, last - s + 1, s == 0, s == last, data, state)
        for s, post in enumerate(shape)
    ]


def cut_of(rows: Sequence[Row], layers: int) -> tuple[int, ...] | None:
    """Layers of each stage, one at least: each next layer goes to the stage that will be the least
    loaded, which is exact where a further layer never makes a stage faster. A tie goes to the later
    stage, which holds fewer micro-batches."""
    counts = [1] * len(rows)
    if sum(counts) > layers:
        return None
    busy_s = [row.busy_s for row in rows]
    heap = [(of_stage[2], -s) for s, of_stage in enumerate(busy_s)]
    heapify(heap)
    for _ in range(layers - len(rows)):
        least_s, place = heap[0]
        if least_s == inf:
            return None
        counts[-place] += 1
        heapreplace(heap, (busy_s[-place][counts[-place] + 1], place))
    if any(of_stage[count] == inf for of_stage, count in zip(busy_s, counts, strict=True)):
        return None
    return tuple(counts)
