"""One replica of a draft: its posts, layers, micro-batches, and about how long they take.

A stage may have several members: each is a post that serves some of the replica's micro-batches, in
proportion to its speed, so that one may change its kind of device where stages meet (the
stage-major form). A stage of members with f + b seconds each works like one of

    1 / sum of 1 / (f + b)

seconds a micro-batch. A member may also only hold a stage: it computes nothing, and owns a part of
the optimizer's states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from itertools import accumulate, pairwise, permutations
from math import inf

from ratrain.plan.draft.pools import Pipeline, Shape
from ratrain.plan.draft.stages import Row, StageRows, Stages, StageWork
from ratrain.plan.layout.enumerate import StateMode
from ratrain.program.replicas import Recovery


def step_s(
    micro_batches: int,
    forwards: Sequence[float],
    backwards: Sequence[float],
    early: Sequence[float],
    messages_s: Sequence[float],
) -> float:
    """The time of so many micro-batches, without what follows the last; stage by stage the seconds
    of one of them, recovery ahead of it (`early`) in backward's, and of the message behind."""
    m, p = micro_batches, len(forwards)
    if p == 1:
        return m * (forwards[0] + backwards[0])
    waited = [b - e for b, e in zip(backwards, early, strict=True)]
    hops = [f + u + 2 * c for f, u, c in zip(forwards, waited, messages_s, strict=True)]
    ramps = [0.0, *accumulate(hops)]
    longest = come = go = 0.0
    for s in range(p):
        f, b, e, u, c = forwards[s], backwards[s], early[s], waited[s], messages_s[s]
        k = min(p - s, m)
        deep = ramps[p] - ramps[s + 1] + early[-1] + 2 * c if s < p - 1 else 0.0
        begin, end = max(k * f + e, f + deep) - e, max(k * b, deep + u)
        full_s, short_s = begin + (m - k) * (f + b) + end, max(begin + k * b, k * f + end)
        stage_s = full_s if m > k else short_s
        paced_s = max((k - 1) * come + (m - 1) * go, (m - 1) * come + (k - 1) * go)
        longest = max(longest, ramps[s] + stage_s, ramps[s] + f + u + paced_s)
        come, go = max(come, f, c), max(go, b, c)
        if s < p - 1:
            loop_s = (hops[s] + forwards[s + 1] + waited[s + 1]) / 2
            longest = max(longest, ramps[s] + m * loop_s)
    return max(longest, ramps[p] + early[-1] + (m - 1) * max(*messages_s))


@dataclass(frozen=True)
class Part:
    """A replica without its share of the step. `works`: of each member of each stage that
    computes."""

    members: Pipeline
    micro_batch: int
    layers: tuple[int, ...]
    works: tuple[tuple[StageWork, ...], ...]
    messages_s: tuple[float, ...]  # behind each stage; of the last, none

    @cached_property
    def has_members(self) -> bool:
        """Whether a stage has several."""
        return any(len(stage.posts) > 1 for stage in self.members)

    @cached_property
    def shape(self) -> Shape:
        """The first member of each stage."""
        return tuple(stage.computing[0] for stage in self.members)

    @cached_property
    def posts(self) -> tuple[Shape, ...]:
        """Of all members of each stage, those that compute first."""
        return tuple(stage.posts for stage in self.members)

    @cached_property
    def degrees_of_units(self) -> list[frozenset[int]]:
        """The tensor degrees of embedding, each layer and head, over the members that hold them."""
        degrees = [frozenset(post.tensor for post in posts) for posts in self.posts]
        layers = [of for of, count in zip(degrees, self.layers, strict=True) for _ in range(count)]
        return [degrees[0], *layers, degrees[-1]]

    @cached_property
    def recovery(self) -> tuple[Recovery, ...]:
        """Of all members of all stages."""
        return tuple(
            mode
            for works, stage in zip(self.works, self.members, strict=True)
            for mode in (
                *(work.recovery for work in works),
                *[Recovery.NONE] * len(stage.holding),
            )
        )

    @property
    def fewest(self) -> int:
        """Micro-batches that it takes at least: one for each member of a stage that computes."""
        return max(map(len, self.works))

    @property
    def slot_s(self) -> float:
        """What each further micro-batch takes, where messages wait for nothing."""
        return max(self.stage_s)

    @cached_property
    def stage_s(self) -> tuple[float, ...]:
        """What each further micro-batch takes of each stage, all of whose members are at work."""
        return tuple(1 / sum(1 / work.busy_s for work in works) for works in self.works)

    @cached_property
    def _ahead_s(self) -> tuple[float, ...]:
        """What the first micro-batch takes at least before each stage, there and back."""
        each_s = (
            min(work.busy_s - work.early_s for work in works) + 2 * message_s
            for works, message_s in zip(self.works, self.messages_s, strict=True)
        )
        return (0.0, *accumulate(each_s))[:-1]

    def step_s(self, micro_batches: int) -> float:
        """About how long this number of micro-batches takes, without what follows the last; where
        stages have members at least."""
        if micro_batches not in self._steps_s:
            self._steps_s[micro_batches] = (
                max(
                    ahead_s + micro_batches * stage_s
                    for ahead_s, stage_s in zip(self._ahead_s, self.stage_s, strict=True)
                )
                if self.has_members
                else step_s(micro_batches, *self._seconds, self.messages_s)
            )
        return self._steps_s[micro_batches]

    def serves(self, micro_batches: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For each stage the micro-batches of its members that compute."""
        return tuple(served(works, micro_batches) for works in self.works)

    @cached_property
    def tails_s(self) -> dict[tuple[int, int, int, bool], float]:
        """What follows the last micro-batch beside other replicas, as far as was asked for."""
        return {}

    @cached_property
    def _steps_s(self) -> dict[int, float]:
        """What was asked for: mixes, shares and changes ask the same again and again."""
        return {}

    @cached_property
    def _seconds(self) -> tuple[list[float], list[float], list[float]]:
        """Of each stage forward, backward, and what of that is recovery ahead of it."""
        works = [of_stage[0] for of_stage in self.works]
        return (
            [work.forward_s for work in works],
            [work.backward_s for work in works],
            [work.early_s for work in works],
        )

    @cached_property
    def _hash(self) -> int:
        return hash((self.members, self.micro_batch, self.layers, self.works))

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
    members: Pipeline,
    micro_batch: int,
    data: int,
    state: StateMode,
    layers: tuple[int, ...] | None = None,
) -> Part | None:
    """The part of a pipeline, its layers cut so that its slowest stage is as fast as can be, unless
    they are given; None where it does not fit."""
    rows = rows_of(stages, members, micro_batch, data, state)
    cut = layers or cut_of([row.together for row in rows], stages.job.model.spec.layers)
    if cut is None:
        return None
    messages_s = [
        min(
            stages.message_s(source, target, micro_batch)
            for source in here.computing
            for target in there.computing
        )
        for here, there in pairwise(members)
    ]
    if inf in messages_s:
        return None
    return _cut(Part(members, micro_batch, (), (), (*messages_s, 0.0)), rows, cut)


def _cut(part: Part, rows: Sequence[StageRows], layers: tuple[int, ...]) -> Part | None:
    """The part with other layers; None where they do not fit."""
    made: list[tuple[StageWork, ...]] = []
    for row, count in zip(rows, layers, strict=True):
        works = [of_member[count] for of_member in row.computing]
        fitting = tuple(work for work in works if work is not None)
        if len(fitting) < len(works) or any(of[count] is None for of in row.holding):
            return None
        made.append(fitting)
    return Part(part.members, part.micro_batch, layers, tuple(made), part.messages_s)


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
    stages: Stages, members: Pipeline, micro_batch: int, data: int, state: StateMode
) -> list[StageRows]:
    """The work of each stage of a pipeline, by its layers."""
    behind, last = sum(len(stage.computing) for stage in members), len(members) - 1
    rows, most = list[StageRows](), max(len(stage.posts) for stage in members)
    for s, stage in enumerate(members):
        place = behind, s == 0, s == last
        rows.append(stages.rows(stage, micro_batch, *place, data - 1, state, most))
        behind -= len(stage.computing)
    return rows


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
