"""What a rank keeps of another's optimizer states: see `program/passes/mirror.py`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ratrain.describe.train import TrainSpec
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Holders
from ratrain.runtime.step.clipping import Clipping
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.optimizer import OwnedPart
from ratrain.storage import page_buffer


@dataclass
class Mirror:
    """Another holder's part of a unit: its master weights and states, and room for its gradient.
    `buddy`, `owner`: places among the holders, of the one that has this rank's mirror, and of the
    one whose mirror this is."""

    buddy: int
    owner: int
    part: OwnedPart
    room: Tensor  # bytes
    gradient: Tensor | None = None  # in it
    version: int = 0  # as of `UnitState`

    def swap(self, network: Network, holders: Holders, own: Tensor) -> None:
        """Sends the own part of a gradient to its buddy, and takes the owner's, of as many
        elements in the same dtype."""
        self.gradient = self.room[: own.nbytes].view(own.dtype)
        network.swap(Lane.REDUCE, holders, {self.buddy: [own]}, {self.owner: [self.gradient]})

    def update(self, spec: TrainSpec, step: int, clipping: Clipping) -> None:
        """The owner's update, of the very same bits where both compute alike."""
        assert self.gradient is not None
        if not clipping.skips:
            updates = clipping.updates_before(step)
            self.part.update(self.gradient, spec, step, updates, clipping.factor)


def in_pages(values: Tensor) -> Tensor:
    """The same in memory that does not count as the device's."""
    paged = room(values.nbytes).view(values.dtype)
    return paged.copy_(values)


def room(size_bytes: int) -> Tensor:
    """So many bytes of such memory."""
    return torch.frombuffer(page_buffer(size_bytes), dtype=torch.uint8)[:size_bytes]
