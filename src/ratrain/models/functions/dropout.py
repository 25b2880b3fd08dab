"""Dropout whose mask follows from where an element is, and from nothing else: the run's seed, the
step, the sequence's place in the step's batch, the unit, the place in the unit, the element's
number in its sequence. So replicas, micro-batches and stages change no bit of it, and what is
computed again has it again: no mask is kept.

An element's number is hashed with two 32-bit keys of its sequence (MurmurHash3's last steps, the
second key in the middle), in integers, alike on all devices.
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


def dropped(
    x: Tensor, drawn: Drawn | None, unit: str, place: int, base: Tensor | None = None
) -> Tensor:
    """x with what was drawn set to zero and the rest larger by as much; with `base`, of x only what
    was added to that."""
    if drawn is None or not drawn.rate:
        return x
    return differentiable(Dropout, x, base, drawn.keys(unit, place, len(x)), drawn.rate)


class Dropout(Function):
    """apply(x [b, ...], base or None, keys of each sequence, rate) -> like x. Keeps nothing."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, base: Tensor | None, keys: tuple[Keys, ...], rate: float
    ) -> Tensor:
        ctx.keys, ctx.rate, ctx.based = keys, rate, base is not None
        x = x.contiguous()
        output = torch.empty_like(x)
        for number, part, kept in _pieces(x, keys, rate):
            values = x[number].view(-1)[part]
            if base is None:
                output[number].view(-1)[part] = values * kept
            else:
                under = base[number].reshape(-1)[part]
                output[number].view(-1)[part] = (values - under).mul_(kept).add_(under)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        gradient = grads[0].contiguous()
        of_x = torch.empty_like(gradient)
        for number, part, kept in _pieces(gradient, ctx.keys, ctx.rate):
            of_x[number].view(-1)[part] = gradient[number].view(-1)[part] * kept
        return of_x, gradient - of_x if ctx.based else None, None, None


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
        return differentiable(Dropout, x, None, keys, self.rate)


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


def _pieces(x: Tensor, keys: tuple[Keys, ...], rate: float) -> Iterator[tuple[int, slice, Tensor]]:
    """Pieces of each sequence's elements, and what each element is multiplied by, in x's dtype."""
    elements = x[0].numel()
    fitting = chunk_elements(x) if is_gpu(x.device.type) else AT_ONCE
    at_once = min(fitting, elements)
    numbers = torch.arange(at_once, dtype=torch.int32, device=x.device)
    least, factor = round(rate * 2**32) - 2**31, 1 / (1 - rate)
    for number, of_sequence in enumerate(keys):
        for begin in range(0, elements, at_once):
            end = min(begin + at_once, elements)
            hashed = _hashed(numbers[: end - begin] + begin, *of_sequence)
            yield number, slice(begin, end), (hashed >= least).to(x.dtype).mul_(factor)


def _hashed(x: Tensor, first: int, second: int) -> Tensor:
    """32 bits for each number, over them; products keep their lower 32 bits."""
    x.mul_(_SPREAD).add_(first)
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(_MIX_1).bitwise_xor_(second)
    x.bitwise_xor_((x >> 13).bitwise_and_(0x7FFFF)).mul_(_MIX_2)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
