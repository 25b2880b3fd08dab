"""Views gathered among ranks that compute in different dtypes.

Every owner has its part in fp32, as master weights. To a rank that computes in fp32 it sends those;
to one that computes in 16 bits what they round to, which is what the owner's own view would have.
So a part arrives in its receiver's dtype, with the bits that it would have if all computed in that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ratrain.cost.scratch import NARROWED_ELEMENTS
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Holders
from ratrain.runtime.step.network import Network


def gather_unlike(
    network: Network,
    lane: Lane,
    flat: Tensor,
    master: Tensor,
    holders: Holders,
    place: int,
    dtypes: Sequence[torch.dtype],
) -> None:
    """Fills `flat` with what other holders own of it; `master`: this rank's part, in fp32. Memory
    beside it: a piece of what leaves, rounded."""
    parts = flat.view(len(holders), -1)
    peers = [peer for peer in range(len(holders)) if peer != place]
    for begin in range(0, parts.shape[1], NARROWED_ELEMENTS):
        piece = slice(begin, min(begin + NARROWED_ELEMENTS, parts.shape[1]))
        leaving = {dtype: master[piece].to(dtype) for dtype in {dtypes[peer] for peer in peers}}
        network.swap(
            lane,
            holders,
            {peer: [leaving[dtypes[peer]]] for peer in peers},
            {peer: [parts[peer][piece]] for peer in peers},
        )
