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

    def busiest_s(self, layers: Sequence[int], shares: Sequence[float]) -> float:
        return max(self.stages_s(layers, shares))


def splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut layers into stages of at least one."""
    for cuts in combinations(range(1, layers), stages - 1):
        ends = (0, *cuts, layers)
        yield tuple(end - begin for begin, end in pairwise(ends))


def equal_split(layers: int, stages: int) -> tuple[int, ...]:
    """The first stages get one more where it does not divide."""
    each, more = divmod(layers, stages)
    return tuple(each + (stage < more) for stage in range(stages))


def best_split(costs: BlockCosts, layers: int, shares: Sequence[float]) -> tuple[int, ...]:
    """The split whose busiest stage is least busy; of such, the one whose stages are most alike."""
    return min(
        splits(layers, len(shares)),
        key=lambda split: sorted(costs.stages_s(split, shares), reverse=True),
    )


def ideal_gain(costs: BlockCosts, layers: int, shares: Sequence[float]) -> float:
    """How much less its busiest stage computes in the best split than in the equal one: the gain
    of a step with endless micro-batches and messages that cost nothing."""
    best = best_split(costs, layers, shares)
    equal = equal_split(layers, len(shares))
    return costs.busiest_s(equal, shares) / costs.busiest_s(best, shares)
