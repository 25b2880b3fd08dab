"""What a rank keeps of a unit's weights that nobody updates, where views are gathered for their
uses (sharding level 3): its share of them, in the dtype in which it computes, or of the bytes in
which they are held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from ratrain.program.kind import Lane
from ratrain.runtime.seats import Holders
from ratrain.runtime.step.exchange.slots import Slots
from ratrain.runtime.step.network.network import Network

FROZEN = "frozen"
"""The kind under which a source gives these weights. No checkpoint holds them: they are what the
run began with."""


@dataclass(frozen=True)
class FrozenShare:
    """`padded`: elements of the whole buffer in the dtype of compute; `shares`: of it, in elements
    of `values`, those of this rank, which these have one after another."""

    padded: int
    shares: Sequence[slice]
    values: Tensor
    holders: Holders
    slots: Slots | None

    def buffer(self, flat: Tensor) -> Tensor:
        """Place for the whole buffer, as it is held."""
        return flat.view(self.values.dtype)

    def gather(self, network: Network, flat: Tensor, algorithm: str) -> None:
        """Fills `flat` with all holders' shares."""
        ends = list(accumulate(share.stop - share.start for share in self.shares))
        for share, end in zip(self.shares, ends, strict=True):
            flat[share] = self.values[end - (share.stop - share.start) : end]
        if self.slots is not None:
            self.slots.gather(network, Lane.GATHER, flat)
        else:
            network.gather(Lane.GATHER, flat, self.holders, algorithm)
