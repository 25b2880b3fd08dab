"""Every plan of a small cluster, by branch and bound.

Every plan: each set of replicas, of any depth, on any of the devices in any order, some idle; every
tensor degree of every stage; every cut of the layers; every share of the batch in micro-batches of
every size; every way to share states; sequence parallelism or none. Devices of a kind stand in
hosts of their own, or all in one, so they are the same.

Nothing is passed over but by a lower bound that is not below the best step known. A set of replicas
must have room for the batch: as many sequences as each can take in less than that step. The bounds
are simulated (`loose`): of a replica whose partners are never late, then of all together; where
each device has a host of its own, then the step itself at the grain of stages, which is that of the
whole program. What is left is built, proved and simulated whole. Levels 2 and 3 have every op of
level 1 and more, so what is not fast enough at level 1 is not tried there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, groupby

from loose import LooseClock, LooseStages
from random_clusters import Cluster

from ratrain.describe.job import JobSpec
from ratrain.plan.draft.clock import StageClock
from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.parts import Part, part_of
from ratrain.plan.draft.pools import (
    Post,
    Shape,
    in_division,
    pipeline_of,
    pools_of,
    tensor_degrees,
    used_of,
)
from ratrain.plan.draft.stages import Stages
from ratrain.plan.file.form import file_of_plan, write_plan
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.search.tried import timed
from ratrain.program.replicas import Recovery

LOCAL, LEVEL_1 = StateMode(0, False), StateMode(1, False)
FURTHER = StateMode(2, True), StateMode(3, False)
"""Ways to share states that are tried where level 1 may be fast enough."""

BETTER = 1e-9
"""Part of a step by which a plan must be faster than the best known."""


@dataclass(frozen=True)
class Choice:
    """A replica with its share of the step, and the least that it takes among others."""

    part: Part
    share: int
    least_s: float


Free = tuple[int, ...]
"""How many devices of each kind are left."""


class AllPlans:
    """The fastest of all plans of a job; `best_s` is a step known before, and falls."""

    def __init__(self, job: JobSpec, cluster: Cluster, best_s: float, limit_s: float) -> None:
        self.job, self.cluster, self.best_s, self.best_words = job, cluster, best_s, ""
        self.drafts = self.simulated = 0
        self.above = 0.0  # how far a bound was above its program at most: must be nothing
        self.is_whole = True
        self._ends_s = time.process_time() + limit_s
        self._stages = LooseStages(job)
        self._clock = LooseClock(self._stages)
        self._exact = None if any(kind.one_host for kind in cluster.kinds) else _exact_clock(job)
        self._free = tuple(kind.count for kind in cluster.kinds)

    def search(self) -> None:
        """Looks at all of them, until its time is over."""
        for data in range(1, 1 + min(sum(self._free), self.cluster.sequences)):
            for state in (LOCAL, LEVEL_1) if data > 1 else (LOCAL,):
                for divided in (False, True):
                    for choices in self._sets(data, state, divided):
                        self._look_at(choices, state)
                        if self._is_over():
                            return

    def check(self, draft: Draft, step_s: float) -> None:
        """Holds the bound of a plan that was simulated against its step."""
        state = draft.state if draft.state in (LOCAL, LEVEL_1) else LEVEL_1
        parts = [
            part_of(self._stages, p.members, p.micro_batch, len(draft.parts), state, p.layers)
            for p in draft.parts
        ]
        loose = tuple(part for part in parts if part is not None)
        least_s = self._clock.least_s(Draft(loose, draft.shares, state, 0.0, trainable=True))
        replicas_s = [
            self._clock.replica_s(part, share, len(loose), state)
            for part, share in zip(loose, draft.shares, strict=True)
        ]
        self.above = max(self.above, max(least_s, *replicas_s) / step_s - 1)

    def _is_over(self) -> bool:
        self.is_whole = time.process_time() < self._ends_s
        return not self.is_whole

    def _look_at(self, choices: Sequence[Choice], state: StateMode) -> None:
        """Simulates a set of replicas whole, unless it is not fast enough in any case."""
        parts, shares = tuple(c.part for c in choices), tuple(c.share for c in choices)
        draft = Draft(parts, shares, state, 0.0, trainable=True)
        self.drafts += 1
        least_s = self._clock.least_s(draft)
        if least_s >= self.best_s * (1 - BETTER):
            return
        if self._is_faster(draft):
            self._simulate(draft, least_s)
        for further in FURTHER if state == LEVEL_1 else ():
            self._simulate(Draft(parts, shares, further, 0.0, trainable=True), least_s)

    def _is_faster(self, draft: Draft) -> bool:
        """Whether a draft of level 0 or 1 may be, as far as its time is known without its whole
        program."""
        exact_s = None if self._exact is None else self._exact.step_s(draft)
        return exact_s is None or exact_s < self.best_s * (1 - BETTER)

    def _simulate(self, draft: Draft, least_s: float) -> None:
        self.simulated += 1
        plan, _ = timed(self.job, self._stages.pools, draft, self.best_s)
        if plan is None:
            return
        self.above = max(self.above, least_s / plan.step_s - 1)
        if plan.step_s < self.best_s:
            self.best_s = plan.step_s
            self.best_words = write_plan(file_of_plan(plan.plan))

    def _sets(self, data: int, state: StateMode, divided: bool) -> Iterator[tuple[Choice, ...]]:
        """Every set of so many replicas with shares, none of which is too slow by itself. Equal
        shapes take their replicas in one order."""
        library = self._library(data, state, divided)
        most = [max(c.share * c.part.micro_batch for c in choices) for _, choices in library]
        used = [used_of(shape, len(self._free)) for shape, _ in library]

        @cache
        def room(free: Free, replicas: int, first: int) -> int:
            """Sequences that so many replicas can take at most, of shapes from the first on."""
            if replicas == 0:
                return 0
            return max(
                (
                    most[number] + room(left, replicas - 1, number)
                    for number in range(first, len(library))
                    if (left := _without(free, used[number])) is not None
                    and sum(left) >= replicas - 1
                ),
                default=-self.cluster.sequences,
            )

        def sets(
            free: Free, replicas: int, first: int, sequences: int
        ) -> Iterator[tuple[int, ...]]:
            """The shapes of replicas with room for so many sequences."""
            if replicas == 0:
                yield ()
                return
            for number in range(first, len(library)):
                left = _without(free, used[number])
                if left is None:
                    continue
                rest = sequences - most[number]
                if room(left, replicas - 1, number) >= rest:
                    for others in sets(left, replicas - 1, number, rest):
                        yield (number, *others)

        for numbers in sets(self._free, data, 0, self.cluster.sequences):
            wide = any(post.tensor > 1 for n in numbers for post in library[n][0])
            if wide or not divided:
                runs = [(library[n][1], len([*same])) for n, same in groupby(numbers)]
                yield from _shared(runs, self.cluster.sequences)

    def _library(
        self, data: int, state: StateMode, divided: bool
    ) -> list[tuple[Shape, list[Choice]]]:
        """Every shape that leaves devices for the other replicas, with all that it can take in
        less than the best step."""
        library: list[tuple[Shape, list[Choice]]] = []
        for plain in self._shapes(sum(self._free) - (data - 1)):
            members = in_division(pipeline_of(plain), divided)
            shape = tuple(stage.computing[0] for stage in members)
            most = self.cluster.sequences - (data - 1)
            choices = [
                choice
                for sequences in range(1, most + 1)
                for choice in self._choices(shape, sequences, data, state)
            ]
            if choices:
                library.append((shape, choices))
        return library

    def _shapes(self, most: int) -> list[Shape]:
        """Every order of stages on what is free, on so many devices at most."""
        posts = [
            Post(number, tensor)
            for number, pool in enumerate(self._stages.pools)
            for tensor in tensor_degrees(self.job, pool)
        ]
        shapes: list[Shape] = []

        def longer(shape: Shape, free: Free) -> None:
            if shape:
                shapes.append(shape)
            if len(shape) == self.cluster.layers:
                return
            for post in posts:
                left = _without(free, used_of((post,), len(free)))
                if left is not None and sum(self._free) - sum(left) <= most:
                    longer((*shape, post), left)

        longer((), self._free)
        return shapes

    def _choices(
        self, shape: Shape, sequences: int, data: int, state: StateMode
    ) -> Iterator[Choice]:
        """A shape that takes so many sequences, in every size and cut that is fast enough."""
        for size in range(1, sequences + 1):
            if sequences % size:
                continue
            for layers in _cuts(self.cluster.layers, len(shape)):
                part = part_of(self._stages, pipeline_of(shape), size, data, state, layers)
                share = sequences // size
                if part is None or _compute_s(part, share) >= self.best_s:
                    continue
                least_s = self._clock.replica_s(part, share, data, state)
                if least_s < self.best_s:
                    yield Choice(part, share, least_s)


def _exact_clock(job: JobSpec) -> StageClock:
    """What gives the times of whole programs where each device has a host of its own."""
    pools = pools_of(job.cluster.members())
    return StageClock(Stages(job, pools, strategy_of(job), [Recovery.NONE]))


def _compute_s(part: Part, share: int) -> float:
    """What a replica's compute alone takes: each stage waits for the first micro-batch to come, and
    its gradient goes back the same way."""
    ahead_s = longest_s = 0.0
    for (work,) in part.works:
        longest_s = max(longest_s, ahead_s + share * work.busy_s)
        ahead_s += work.busy_s
    return longest_s


def _shared(
    runs: Sequence[tuple[list[Choice], int]], sequences: int
) -> Iterator[tuple[Choice, ...]]:
    """The batch shared out among shapes, each so often: one of its choices for each time, in one
    order."""
    turns = [(choices, place > 0) for choices, times in runs for place in range(times)]
    most = [max(c.share * c.part.micro_batch for c in choices) for choices, _ in turns]

    def longer(turn: int, first: int, left: int) -> Iterator[tuple[Choice, ...]]:
        if turn == len(turns):
            if left == 0:
                yield ()
            return
        choices, is_same = turns[turn]
        begin, rest = first if is_same else 0, sum(most[turn + 1 :])
        for number in range(begin, len(choices)):
            taken = choices[number].share * choices[number].part.micro_batch
            if left - rest <= taken <= left - (len(turns) - turn - 1):
                for others in longer(turn + 1, number, left - taken):
                    yield (choices[number], *others)

    yield from longer(0, 0, sequences)


def _without(free: Free, used: Free) -> Free | None:
    """What is left; None where there are not so many."""
    left = tuple(have - taken for have, taken in zip(free, used, strict=True))
    return left if min(left) >= 0 else None


def _cuts(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every cut of layers into stages of one at least."""
    for ends in combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in zip((0, *ends), (*ends, layers), strict=True))
