"""AdamW whose moments are 8 bits an element, with an fp32 scale for each block of 64.

Blockwise as in Dettmers et al. 2022, arXiv 2110.02861, with codes in even steps of the logarithm: a
code says how far an element is below the largest of its block. First moments: a sign and steps of
1/8 octave over 15.75 octaves, so each is within 4.5 % of what it was, and zero where it was less
than 1/60,000 of the block's largest. Second moments: steps of 1/16 octave over 15.875 octaves,
within 2.2 %; a smaller one becomes the smallest code, never zero, so that no step grows. The
largest of a block is exact, and what was read from 8 bits is written as the same 8 bits: a run
resumes bit for bit on the same blocks, and within these errors on others (another tensor degree).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratrain.describe.optimizers.adamw import AdamKeys, adam
from ratrain.describe.optimizers.optimizer import (
    Matrix,
    Optimizer,
    State,
    Step,
    declare_optimizer,
)

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 64
"""Elements of a scale. Every run that a rank holds begins and ends on a multiple of it."""


@dataclass(frozen=True)
class Blocks:
    """8 bits an element: steps of the logarithm below the largest of the block; 0 is zero."""

    codes: Tensor  # uint8, or int8 where values have signs
    scales: Tensor  # fp32, one a block
    signed: bool

    @property
    def _levels(self) -> tuple[int, int]:
        """The code of the largest, and steps an octave."""
        return (127, 8) if self.signed else (255, 16)

    def __getitem__(self, run: slice) -> Blocks:
        begin, end = run.start or 0, len(self.codes) if run.stop is None else run.stop
        scales = self.scales[begin // BLOCK : -(-end // BLOCK)]
        return Blocks(self.codes[begin:end], scales, self.signed)

    def values(self) -> Tensor:
        highest, steps = self._levels
        codes = _in_blocks(self.codes).float()
        below = (codes.abs() - highest) / steps
        values = below.exp2_().mul_(codes.sign()).mul_(self.scales.unsqueeze(1))
        return values.view(-1)[: len(self.codes)]

    def take(self, values: Tensor) -> None:
        highest, steps = self._levels
        blocks = _in_blocks(values)
        size = blocks.abs()
        scales = size.amax(1)
        self.scales.copy_(scales)
        # A block of zeros has codes of zero whatever it is divided by.
        codes = size.div_(scales.clamp(min=1e-38).unsqueeze(1)).log2_().mul_(steps).round_()
        codes.add_(highest)
        if self.signed:
            codes.clamp_(min=0).mul_(blocks.sign())
        else:
            codes.clamp_(min=1).mul_(blocks > 0)
        self.codes.copy_(codes.view(-1)[: len(self.codes)])


def _in_blocks(values: Tensor) -> Tensor:
    """A row a block; the last one filled up with zeros."""
    import torch

    short = -len(values) % BLOCK
    return (torch.nn.functional.pad(values, (0, short)) if short else values).view(-1, BLOCK)


def _hold(values: Tensor, *, signed: bool) -> Blocks:
    import torch

    codes = torch.zeros(
        len(values), dtype=torch.int8 if signed else torch.uint8, device=values.device
    )
    held = Blocks(codes, values.new_zeros(-(-len(values) // BLOCK)), signed)
    held.take(values)
    return held


def _first(values: Tensor, _parameters: Sequence[Matrix]) -> Blocks:
    return _hold(values, signed=True)


def _second(values: Tensor, _parameters: Sequence[Matrix]) -> Blocks:
    return _hold(values, signed=False)


def _update(
    weights: Tensor, gradient: Tensor, states: Sequence[Blocks], keys: AdamKeys, step: Step
) -> None:
    first, second = states
    moment1, moment2 = first.values(), second.values()
    adam(weights, gradient, moment1, moment2, keys, step)
    first.take(moment1)
    second.take(moment2)


_BYTES = 1 + 4 / BLOCK

declare_optimizer(
    Optimizer(
        "adamw-8bit",
        "AdamW with moments of 8 bits in blocks of 64",
        AdamKeys,
        (State("moment1", _BYTES, hold=_first), State("moment2", _BYTES, hold=_second)),
        _update,
        moved_bytes=12 + 4 * _BYTES,
        copies=6,
    )
)
