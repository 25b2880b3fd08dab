"""One replica of a draft: its posts, its layers, its micro-batches, and about how long they take.

The closed form is that of `estimate`, for one replica:

    T(s) = ramp(s) + max(k f + e, f + deep) - e + (m - k)(f + b) + max(k b, deep + u)

and the pace at which a slow stage or line ahead of a stage lets work come and go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import accumulate, pairwise, permutations
from math import inf
from operator import itemgetter

from ratrain.plan.enumerate import StateMode
from ratrain.plan.unequal_pools import Shape
from ratrain.plan.unequal_stages import Row, Stages, StageWork
from ratrain.program.replicas import Recovery


@dataclass(frozen=True)
class Part:
    """A replica without its share of the step."""

    shape: Shape
    micro_batch: int
    layers: tuple[int, ...]
    works: tuple[StageWork, ...]
    messages_s: tuple[float, ...]  # behind each stage; of the last, none

    @property
    def recovery(self) -> tuple[Recovery, ...]:
        return tuple(work.recovery for work in self.works)

    @property
    def slot_s(self) -> float:
        """What each further micro-batch takes."""
        return max(*(work.busy_s for work in self.works), *self.messages_s)

    def step_s(self, micro_batches: int) -> float:
        """About how long this number of micro-batches takes, without what follows the last."""
        m, p = micro_batches, len(self.works)
        if p == 1:
            return m * self.works[0].busy_s
        forwards = [work.forward_s for work in self.works]
        backwards = [work.backward_s for work in self.works]
        waited = [work.backward_s - work.early_s for work in self.works]
        hops = [f + u + 2 * c for f, u, c in zip(forwards, waited, self.messages_s, strict=True)]
        ramps = [0.0, *accumulate(hops)]
        last_early_s = self.works[-1].early_s
        longest = come = go = 0.0
        for s, work in enumerate(self.works):
            f, b, e, u = work.forward_s, work.backward_s, work.early_s, waited[s]
            k = min(p - s, m)
            deep = 0.0
            if s < p - 1:
                deep = ramps[p] - ramps[s + 1] + last_early_s + 2 * self.messages_s[s]
            begin, end = max(k * f + e, f + deep) - e, max(k * b, deep + u)
            once_s = max(begin + k * b, k * f + end)
            stage_s = begin + (m - k) * (f + b) + end if m > k else once_s
            paced_s = max((k - 1) * come + (m - 1) * go, (m - 1) * come + (k - 1) * go)
            longest = max(longest, ramps[s] + stage_s, ramps[s] + f + u + paced_s)
            come = max(come, forwards[s], self.messages_s[s])
            go = max(go, backwards[s], self.messages_s[s])
            if s < p - 1:
                loop_s = (hops[s] + forwards[s + 1] + waited[s + 1]) / 2
                longest = max(longest, ramps[s] + m * loop_s)
        return max(longest, ramps[p] + last_early_s + (m - 1) * max(self.messages_s))


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


def recut(stages: Stages, part: Part, data: int, state: StateMode, micro_batches: int) -> Part:
    """The part with single layers moved from stage to stage as long as so many micro-batches then
    take less: of cuts whose slowest stages are alike, the fill of the pipeline decides."""
    rows = rows_of(stages, part.shape, part.micro_batch, data, state)
    step_s = part.step_s(micro_batches)
    while True:
        moved = (_cut(part, rows, layers) for layers in layers_moved(part.layers))
        timed = [(other.step_s(micro_batches), other) for other in moved if other is not None]
        best_s, best = min(timed, key=itemgetter(0), default=(step_s, part))
        if best_s >= step_s * (1 - 1e-9):
            return part
        step_s, part = best_s, best


def layers_moved(layers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every cut in which a stage holds a layer of another one's."""
    for source, target in permutations(range(len(layers)), 2):
        if layers[source] > 1:
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
    heap = [(_busy_s(row, 2), -s) for s, row in enumerate(rows)]
    heapify(heap)
    for _ in range(layers - len(rows)):
        busy_s, place = heap[0]
        if busy_s == inf:
            return None
        counts[-place] += 1
        heapreplace(heap, (_busy_s(rows[-place], counts[-place] + 1), place))
    if any(row[count] is None for row, count in zip(rows, counts, strict=True)):
        return None
    return tuple(counts)


def _busy_s(row: Row, layers: int) -> float:
    work = row[layers] if layers < len(row) else None
    return inf if work is None else work.busy_s
