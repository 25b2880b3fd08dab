"""Sums of tensors in one fixed order of ranks, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ratrain.cost.scratch import CHUNK_BYTES

PIECES_AHEAD = 3
"""Pieces of a reduction on their way at once: a link is not idle while ranks add one up."""
PIECE_BYTES = 2 * CHUNK_BYTES // (PIECES_AHEAD + 1)
"""One more has landed: together two chunks from each peer, which `cost.scratch` counts."""


def add_up(parts: Sequence[Tensor], out: Tensor) -> None:
    """The sum in the order given, to `out`, which may be one of the parts; 2-byte parts are added
    in fp32 and rounded once."""
    if len(parts) == 1:
        if parts[0].data_ptr() != out.data_ptr():
            out.copy_(parts[0])
        return
    is_wide = torch.float32 in (parts[0].dtype, parts[-1].dtype)  # else two would be added narrow
    if len(parts) == 2 and out.dtype == torch.float32 and is_wide:
        torch.add(parts[0], parts[1], out=out)
        return
    wide = torch.promote_types(out.dtype, torch.float32)
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        total += part
    out.copy_(total)


def pieces(flat: Tensor, size_bytes: int = CHUNK_BYTES) -> Iterator[Tensor]:
    """A flat tensor's views of at most that size, in order."""
    step = max(1, size_bytes // flat.element_size())
    for begin in range(0, len(flat), step):
        yield flat[begin : begin + step]
