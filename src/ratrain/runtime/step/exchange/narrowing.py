"""Tensors that are sent narrower than they are computed: rounded, and widened, in their own memory.

A narrow tensor leaves from the first half of a wide one's memory and arrives in the second half
of another's, so what travels in 16 bits takes no memory of its own, at either end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ratrain.cost.scratch import pieces_on
from ratrain.runtime.step.exchange.integers import Integers


@dataclass(frozen=True)
class Wire:
    """In what tensors are sent: gradients, in reductions and between tied copies; and boundary
    tensors, which are activations between stages and their gradients. `averages`: where they are
    sent as integers."""

    gradients: torch.dtype
    boundaries: torch.dtype
    averages: Integers | None = None


def narrowed(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """A flat tensor's values in `dtype`, in the first part of its own memory; itself where it has
    that dtype. Memory beside it: a piece."""
    if wide.dtype == dtype:
        return wide
    narrow, elements = narrowed_place(wide, dtype), pieces_on(wide.device.type).narrowed
    for begin in range(0, len(wide), elements):
        end = min(begin + elements, len(wide))
        # A rounded element is stored before where it was read: nothing unread is overwritten.
        narrow[begin:end] = wide[begin:end].to(dtype)
    return narrow


def narrowed_place(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """Where `narrowed` leaves them."""
    return wide if wide.dtype == dtype else wide.view(dtype)[: len(wide)]


def widen_from_front(wide: Tensor, narrow: Tensor) -> None:
    """Makes a flat tensor of narrow values in the first part of its own memory (`narrowed`)."""
    if narrow is wide:
        return
    elements = pieces_on(wide.device.type).narrowed
    for begin in reversed(range(0, len(wide), elements)):
        end = min(begin + elements, len(wide))
        # What a widened element is stored over was read before, or is its own: from the end on.
        wide[begin:end] = narrow[begin:end].clone()


def landing_place(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """Where a flat tensor's values arrive in `dtype`, until `widen`: the last part of its own
    memory; itself where it has that dtype."""
    return wide if wide.dtype == dtype else wide.view(dtype)[-len(wide) :]


def widen(wide: Tensor, dtype: torch.dtype) -> None:
    """Makes a flat tensor of the values at its `landing_place`. Memory beside it: a piece."""
    narrow = landing_place(wide, dtype)
    if narrow is wide:
        return
    elements = pieces_on(wide.device.type).narrowed
    for begin in range(0, len(wide), elements):
        end = min(begin + elements, len(wide))
        # A widened element ends in front of the next narrow one: nothing unread is overwritten.
        wide[begin:end] = narrow[begin:end].clone()
