"""The batch shared out anew among the shapes of a draft, each in the micro-batch that suits it.

Drafts are made in micro-batches of one size, and shares fall out of that. Where a batch is small, a
part may do best with all of its share in one micro-batch, and then it can take more: one device
with one sequence beside a tensor group of four with seven at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ratrain.plan.draft.draft import Draft, shared
from ratrain.plan.draft.parts import Part
from ratrain.plan.draft.pools import Shape
from ratrain.plan.draft.space import Space
from ratrain.plan.layout.enumerate import StateMode, divisors_of
from ratrain.plan.price.kind_speed import LARGEST_MICRO_BATCH

MOST_SEQUENCES = 32
"""Of larger batches, shares in micro-batches of one size come near enough to the best."""


@dataclass(frozen=True)
class Side:
    """A part with its micro-batches, and about how long they take."""

    part: Part
    share: int
    step_s: float


def best_shares(space: Space) -> Callable[[Draft], Draft | None]:
    """What makes the draft of another's shapes whose slowest part takes least; None where the batch
    is too large or there is none."""
    sequences = space.sequences

    @cache
    def fastest(shape: Shape, count: int, data: int, state: StateMode) -> Side | None:
        """A shape with so many sequences, in the micro-batch in which it is fastest."""
        sizes = [size for size in divisors_of(count) if size <= LARGEST_MICRO_BATCH]
        made = [space.part(shape, size, data, state) for size in sizes]
        sides = [
            Side(part, count // size, part.step_s(count // size))
            for part, size in zip(made, sizes, strict=True)
            if part is not None
        ]
        return min(sides, key=lambda side: side.step_s, default=None)

    def draft_of(draft: Draft) -> Draft | None:
        data = len(draft.parts)
        if not data <= sequences <= MOST_SEQUENCES:
            return None
        best: dict[int, tuple[float, tuple[Side, ...]]] = {0: (0.0, ())}
        for place, part in enumerate(draft.parts, 1):
            longer: dict[int, tuple[float, tuple[Side, ...]]] = {}
            for taken, (slowest_s, sides) in best.items():
                for count in range(1, sequences - taken - (data - place) + 1):
                    side = fastest(part.shape, count, data, draft.state)
                    if side is None:
                        continue
                    step_s, known = max(slowest_s, side.step_s), longer.get(taken + count)
                    if known is None or step_s < known[0]:
                        longer[taken + count] = step_s, (*sides, side)
            best = longer
        if sequences not in best:
            return None
        sides = best[sequences][1]
        return shared(
            space.stages, [side.part for side in sides], [side.share for side in sides], draft.state
        )

    return draft_of


def in_best_sizes(space: Space, draft: Draft) -> Draft | None:
    """The same shares of the step, each part in the micro-batch in which it is fastest; None where
    that is how it is."""
    sides = [*zip(draft.parts, draft.shares, strict=True)]
    best: dict[tuple[Part, int], Part] = {}
    for part, share in dict.fromkeys(sides):
        sequences = part.micro_batch * share
        sizes = [size for size in divisors_of(sequences) if size <= LARGEST_MICRO_BATCH]
        made = [space.part(part.shape, size, len(draft.parts), draft.state) for size in sizes]
        fitting = [each for each in made if each is not None]
        best[part, share] = min(
            fitting, key=lambda each, whole=sequences: each.step_s(whole // each.micro_batch)
        )
    parts = [best[side] for side in sides]
    shares = [part.micro_batch * share // best[part, share].micro_batch for part, share in sides]
    if parts == list(draft.parts):
        return None
    return shared(space.stages, parts, shares, draft.state)
