"""What layers cost, how they divide over unequal devices, and what that can gain at most.

Imports nothing of ours: the program that measures blocks and the one that starts labs share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise


@dataclass(frozen=True)
class BlockCosts:
    """Seconds of a whole processor for one micro-batch of one sequence, forward and backward."""

    embedding_s: float
    layer_s: float
    head_s: float

    def stages_s(self, layers: Sequence[int], shares: Sequence[float]) -> tuple[float, ...]:
        """Each stage's seconds; the first holds the embedding, the last the head."""
        last = len(layers) - 1
        ends = [self.embedding_s * (s == 0) + self.head_s * (s == last) for s in range(last + 1)]
        return tuple(
            (count * self.layer_s + end_s) / share
            for count, end_s, share in zip(layers, ends, shares, strict=True)
        )

    def step_s(self, layers: Sequence[int], shares: Sequence[float], micro_batches: int) -> float:
        """Of 1F1B whose messages cost nothing: each stage once, the busiest for all the others."""
        stages_s = self.stages_s(layers, shares)
        return sum(stages_s) + (micro_batches - 1) * max(stages_s)


def splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut layers into stages of at least one."""
    for cuts in combinations(range(1, layers), stages - 1):
        ends = (0, *cuts, layers)
        yield tuple(end - begin for begin, end in pairwise(ends))


def equal_split(layers: int, stages: int) -> tuple[int, ...]:
    """The first stages get one more where it does not divide."""
    each, more = divmod(layers, stages)
    return tuple(each + (stage < more) for stage in range(stages))


def best_split(
    costs: BlockCosts, layers: int, shares: Sequence[float], micro_batches: int
) -> tuple[int, ...]:
    """The split of the shortest step, as an expert counts it."""
    every = splits(layers, len(shares))
    return min(every, key=lambda split: costs.step_s(split, shares, micro_batches))


def ideal_gain(
    costs: BlockCosts, layers: int, shares: Sequence[float], micro_batches: int
) -> float:
    """How much shorter the step of the best split is than that of the equal one."""
    best = best_split(costs, layers, shares, micro_batches)
    equal = equal_split(layers, len(shares))
    return costs.step_s(equal, shares, micro_batches) / costs.step_s(best, shares, micro_batches)
