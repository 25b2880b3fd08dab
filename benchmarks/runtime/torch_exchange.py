"""Tensors exchanged with several peers at once, over torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor


def exchange(
    group: dist.ProcessGroup, peers: Sequence[int], out: Sequence[Tensor], into: Sequence[Tensor]
) -> list[dist.Work]:
    """Begins to send `out[i]` to the world rank `peers[i]` and to fill `into[i]` with what it
    sends."""
    return exchange_pairs(
        group, list(zip(peers, out, strict=True)), list(zip(peers, into, strict=True))
    )


def exchange_pairs(
    group: dist.ProcessGroup,
    out: Sequence[tuple[int, Tensor]],
    into: Sequence[tuple[int, Tensor]],
) -> list[dist.Work]:
    """The same to and from other peers, as (world rank, tensor). Receives stand first, so that both
    directions of a link are used at once; as one batch, since NCCL begins none of them before the
    last is known."""
    both = [
        dist.P2POp(do, tensor, peer, group)
        for do, pairs in ((dist.irecv, into), (dist.isend, out))
        for peer, tensor in pairs
        if tensor.numel()
    ]
    return dist.batch_isend_irecv(both) if both else []


def wait_all(works: Sequence[dist.Work]) -> None:
    """Waits until all have ended."""
    for work in works:
        work.wait()
