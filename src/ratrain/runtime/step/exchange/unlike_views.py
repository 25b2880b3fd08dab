"""Views gathered among ranks that compute in different dtypes.

Every owner has its part in fp32, as master weights. To a rank that computes in fp32 it sends those;
to one that computes in 16 bits what they round to, which is what the owner's own view would have.
So a part arrives in its receiver's dtype, with the bits that it would have if all computed in that.

What has the receiver's dtype already, the master weights or the owner's own view, leaves from
where it lies; the rest is rounded on its way, piece by piece. All pieces together take no more
memory than `cost.scratch` counts for the lane of gathers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ratrain.cost.scratch import ON_CPU
from ratrain.runtime.seats import Holders


@dataclass(frozen=True)
class UnlikeView:
    """A view as one of its holders gathers it: a buffer in its own dtype, in which its own part
    lies, and that part in fp32."""

    flat: Tensor
    master: Tensor
    holders: Holders
    place: int  # of this rank among the holders
    dtypes: tuple[torch.dtype, ...]  # of the holders

    @cached_property
    def parts(self) -> Tensor:
        """What each holder owns, by its place."""
        return self.flat.view(len(self.holders), -1)

    @cached_property
    def others(self) -> list[int]:
        """Places of the other holders."""
        return [place for place in range(len(self.holders)) if place != self.place]

    def lying(self, dtype: torch.dtype) -> Tensor | None:
        """This rank's part in a dtype, where it is there."""
        if dtype == self.master.dtype:
            return self.master
        return self.parts[self.place] if dtype == self.flat.dtype else None

    def rounded(self, dtype: torch.dtype, elements: int) -> Iterator[Tensor]:
        """This rank's part in a dtype in which it is not there, in pieces of so many elements, each
        where the one before was."""
        room = torch.empty(min(elements, len(self.master)), dtype=dtype, device=self.master.device)
        for piece in self.master.split(elements):
            yield room[: len(piece)].copy_(piece)


def rounded_elements(rooms: int) -> int:
    """Of a piece, where so many are rounded at once."""
    return max(1, ON_CPU.narrowed // max(1, rooms))
