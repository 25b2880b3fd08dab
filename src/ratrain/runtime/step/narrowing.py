"""Gradients that add up in fp32 and travel in 16 bits: rounded once, when their sum is complete."""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK_ELEMENTS = 1 << 18


def narrowed(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """A flat tensor's values in `dtype`, in the first part of its own memory; itself where it has
    that dtype. Memory beside it: a chunk."""
    if wide.dtype == dtype:
        return wide
    narrow = wide.view(dtype)[: len(wide)]
    for begin in range(0, len(wide), _CHUNK_ELEMENTS):
        end = min(begin + _CHUNK_ELEMENTS, len(wide))
        # A rounded element lies in front of where it came from: nothing unread is overwritten.
        narrow[begin:end] = wide[begin:end].to(dtype)
    return narrow
