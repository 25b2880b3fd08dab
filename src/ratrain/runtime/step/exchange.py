"""Tensors exchanged with several peers at once, and their sum in one order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ratrain.cost.scratch import CHUNK_BYTES


def exchange(
    group: dist.ProcessGroup, peers: Sequence[int], out: Sequence[Tensor], into: Sequence[Tensor]
) -> list[dist.Work]:
    """Begins to send `out[i]` to the world rank `peers[i]` and to fill `into[i]` with what it
    sends. Receives stand first, so that both directions of a link are used at once; as one batch,
    since NCCL begins none of them before the last is known."""
    both = [
        dist.P2POp(do, tensor, peer, group)
        for do, tensors in ((dist.irecv, into), (dist.isend, out))
        for tensor, peer in zip(tensors, peers, strict=True)
        if tensor.numel()
    ]
    return dist.batch_isend_irecv(both) if both else []


def wait_all(works: Sequence[dist.Work]) -> None:
    """Waits until all have ended."""
    for work in works:
        work.wait()


def add_up(parts: Sequence[Tensor], out: Tensor) -> None:
    """The sum in the order given, to `out`, which may be one of the parts; 2-byte parts are added
    in fp32 and rounded once."""
    if len(parts) == 1:
        if parts[0].data_ptr() != out.data_ptr():
            out.copy_(parts[0])
        return
    if len(parts) == 2 and out.dtype == torch.float32:
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
