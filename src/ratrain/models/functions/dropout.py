"""Dropout whose mask follows from where an element is, and from nothing else: the run's seed, the
step, the sequence's place in the step's batch, the unit, the place in the unit, the element's
number in its sequence. So replicas, micro-batches and stages change no bit of it, and what is
computed again has it again: no mask is kept.

An element's number is hashed with two 32-bit keys of its sequence (MurmurHash3's last steps, the
second key in the middle), in integers, alike on all devices.

In a tensor group a unit's output may be a rank's part of a sum: of every part is dropped what is
dropped of the sum. Where the group divides rows each rank draws for its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from threading import local
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from ratrain.describe.runs_on import is_gpu
from ratrain.models.functions.chunks import chunk_elements
from ratrain.models.functions.differentiable import differentiable
from ratrain.models.functions.rows import own_rows, spread
from ratrain.models.tensor_group import TensorGroup, divides_rows, division_of, leads

_SPREAD, _MIX_1, _MIX_2 = -1640531535, -2048144789, -1028477387
"""Odd numbers, as signed 32-bit ones: 2^32 over the golden ratio, and MurmurHash3's two."""
AT_ONCE = 1 << 16
"""Elements whose masks are made at once on a CPU: `cost.scratch` counts six numbers of each."""
Keys = tuple[int, int]


@dataclass(frozen=True)
class Drawn:
    """What a micro-batch's masks follow from. `first`: the place of its first sequence in the
    step's batch of all replicas."""

    rate: float  # of what is dropped in units of RATrain's own models
    seed: int
    step: int
    first: int

    def keys(self, unit: str, place: int, sequences: int) -> tuple[Keys, ...]:
        """Two numbers for each sequence."""
        return tuple(
            _keys(f"{self.seed}/{self.step}/{self.first + row}/{unit}/{place}")
            for row in range(sequences)
        )


@dataclass(frozen=True)
class Within:
    """What a tensor is of so many sequences. `group`: a tensor group whose ranks have each a `part`
    of a sum of all rows, or complete rows: all, or where it divides them their own."""

    sequences: int
    group: TensorGroup | None = None
    part: bool = False

    @property
    def divided(self) -> bool:
        return divides_rows(self.group)


@dataclass(frozen=True)
class Masks:
    """What is dropped of sequences, a key each."""

    keys: tuple[Keys, ...]
    rate: float

    def of(self, x: Tensor, first: int, sequence: int) -> Iterator[tuple[slice, Tensor]]:
        """Pieces of x, which is flat and begins with element `first` of all sequences of so many
        elements, and what each element is multiplied by, in x's dtype."""
        fitting = chunk_elements(x) if is_gpu(x.device.type) else AT_ONCE
        at_once = min(fitting, sequence)
        numbers = torch.arange(at_once, dtype=torch.int32, device=x.device)
        least, factor = round(self.rate * 2**32) - 2**31, 1 / (1 - self.rate)
        for number, of_sequence in enumerate(self.keys):
            begins = number * sequence
            low, high = max(first, begins), min(first + len(x), begins + sequence)
            for begin in range(low, high, at_once):
                end = min(begin + at_once, high)
                hashed = _hashed(numbers[: end - begin] + (begin - begins), *of_sequence)
                kept = (hashed >= least).to(x.dtype).mul_(factor)
                yield slice(begin - first, end - first), kept


def dropped(
    x: Tensor,
    drawn: Drawn | None,
    unit: str,
    place: int,
    base: Tensor | None = None,
    within: Within | None = None,
) -> Tensor:
    """x with what was drawn set to zero and the rest larger by as much; with `base`, of x only what
    was added to that: it is complete, and the parts of a sum have it once. `within`: None for
    sequences that are whole here."""
    if drawn is None or not drawn.rate:
        return x
    within = within or Within(len(x))
    masks = Masks(drawn.keys(unit, place, within.sequences), drawn.rate)
    return differentiable(Dropout, x, base, masks, within)


class Dropout(Function):
    """apply(x [..., h], base or None, masks, what x is) -> like x. Keeps nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, base: Tensor | None, masks: Masks, within: Within) -> Tensor:
        ctx.masks, ctx.within, ctx.based = masks, within, base is not None
        division, own = division_of(within.group), within.divided and not within.part
        x = x.contiguous()
        output = torch.empty_like(x)
        ctx.sequence = x.numel() * (division.degree if own else 1) // within.sequences
        if within.part and within.divided and base is not None:
            _drop(x, None, output, masks, 0, ctx.sequence)
            mine, first = division.rank, division.rank * base.numel()
            _drop(x[mine], base, output[mine], masks, first, ctx.sequence)
        else:
            under = None if within.part and not leads(within.group) else base
            _drop(x, under, output, masks, division.rank * x.numel() * own, ctx.sequence)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        within: Within = ctx.within
        group, divided = within.group, within.divided
        gradient = own_rows(grads[0], group) if within.part and divided else grads[0]
        gradient = gradient.contiguous()
        of_x = torch.empty_like(gradient)
        first = division_of(group).rank * gradient.numel() if divided else 0
        _drop(gradient, None, of_x, ctx.masks, first, ctx.sequence)
        # Of a sum's part the base's gradient is complete on all ranks; else one rank's alone.
        counts = ctx.based and (within.part or divided or leads(group))
        of_base = gradient - of_x if counts else None
        return spread(of_x, group) if within.part else of_x, of_base, None, None


def _drop(
    x: Tensor, base: Tensor | None, output: Tensor, masks: Masks, first: int, sequence: int
) -> None:
    """Writes what is left of x; the first of its elements is number `first` of all sequences."""
    flat, made = x.view(-1), output.view(-1)
    under = None if base is None else base.reshape(-1)
    for part, kept in masks.of(flat, first, sequence):
        if under is None:
            made[part] = flat[part] * kept
        else:
            made[part] = (flat[part] - under[part]).mul_(kept).add_(under[part])


class CountedDropout(nn.Module):
    """An `nn.Dropout` of a user's module, with masks of this kind: a place for each call."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        drawing: _Drawing | None = getattr(_NOW, "drawing", None)
        if drawing is None or not self.rate:
            return x
        drawing.place += 1
        keys = drawing.drawn.keys(drawing.unit, drawing.place, len(x))
        return differentiable(Dropout, x, None, Masks(keys, self.rate), Within(len(x)))


@contextmanager
def drawing(drawn: Drawn | None, unit: str) -> Iterator[None]:
    """Inside, on this thread, a unit's `CountedDropout`s drop what follows from `drawn`."""
    _NOW.drawing = None if drawn is None else _Drawing(drawn, unit)
    try:
        yield
    finally:
        _NOW.drawing = None


@dataclass
class _Drawing:
    drawn: Drawn
    unit: str
    place: int = 0


_NOW = local()


def _keys(text: str) -> Keys:
    digest = blake2b(text.encode(), digest_size=8).digest()
    first, second = (
        int.from_bytes(half, "little", signed=True) for half in (digest[:4], digest[4:])
    )
    return first, second


def _hashed(x: Tensor, first: int, second: int) -> Tensor:
    """32 bits for each number, over them; products keep their lower 32 bits."""
    x.mul_(_SPREAD).add_(first)
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(_MIX_1).bitwise_xor_(second)
    x.bitwise_xor_((x >> 13).bitwise_and_(0x7FFFF)).mul_(_MIX_2)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
