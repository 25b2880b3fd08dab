"""Error feedback: what rounding takes away from a gradient that is sent comes with the next one.

In fp32, element by element, with gradient g, residual e and loss scale S:

    t = g + S e        what is to be sent
    s = round(t)       what is sent, in the dtype of the wire
    e' = (t - s) / S   the next residual

The subtraction is exact: the difference is a multiple of t's last bit and has fewer bits than t.
With scales that are powers of two so is the division. Nothing is lost but the rounding of t to
fp32. A residual is kept unscaled, since the loss scale may change from one step to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ratrain.cost.scratch import RESIDUAL_ELEMENTS
from ratrain.describe.optimizers import Plain
from ratrain.runtime.step.exchange.buckets import Span
from ratrain.runtime.step.exchange.narrowing import narrowed


@dataclass
class Residual:
    """What a rank has not sent yet of a unit's gradient. `following` is a place beside it for that
    of a step that may turn out to be skipped; None where none is."""

    kept: Tensor
    following: Tensor | None = None

    def __getitem__(self, run: slice) -> Plain:
        return Plain(self.kept[run])

    def values(self) -> Tensor:
        return self.kept

    def take(self, values: Tensor) -> None:
        self.kept.copy_(values)

    def narrowed(
        self,
        wide: Tensor,
        dtype: torch.dtype,
        spans: Iterable[Span] | None = None,
        *,
        first: bool,
        scale: float,
    ) -> Tensor:
        """What is sent of a flat fp32 tensor, in `dtype` and in the first part of its own memory.
        `spans`: what it holds of the unit's gradient, in the order of its elements; left out: all.
        `first`: in this step. Memory beside it: a piece."""
        after = self.kept if self.following is None else self.following
        before = self.kept if first else after
        pieces = list(_pieces([Span(0, 0, len(wide))] if spans is None else spans))
        for here, whole in pieces:
            torch.add(wide[here], before[whole], alpha=scale, out=after[whole])
            wide[here] = after[whole]
        narrow = narrowed(wide, dtype)
        for here, whole in pieces:
            total = after[whole]
            total -= narrow[here]
            if scale != 1.0:
                total /= scale
        return narrow

    def settle(self, *, skipped: bool) -> None:
        """Ends a step: one that is skipped leaves the residual as it was."""
        if self.following is not None and not skipped:
            self.kept, self.following = self.following, self.kept


def _pieces(spans: Iterable[Span]) -> Iterator[tuple[slice, slice]]:
    """Where elements are in what is sent, and in the unit, in pieces of which a copy is small."""
    for span in spans:
        for done in range(0, span.count, RESIDUAL_ELEMENTS):
            count = min(RESIDUAL_ELEMENTS, span.count - done)
            at, begin = span.at + done, span.begin + done
            yield slice(at, at + count), slice(begin, begin + count)
