"""Boundary tensors as messages: activations between stages, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ratrain.program.kind import Lane
from ratrain.runtime.step.exchange.narrowing import landing_place, narrowed, widen
from ratrain.runtime.step.network.network import Network


@dataclass(frozen=True)
class BoundaryPart:
    """Of a tensor of `joined` micro-batches the rows of `apart` of them, from `micro_batch` on:
    what a message has where the stage at its other end computes fewer at once."""

    joined: int
    apart: int
    micro_batch: int

    @property
    def first(self) -> int:
        """The first micro-batch of the whole tensor."""
        return self.micro_batch - self.micro_batch % self.joined

    @property
    def is_first(self) -> bool:
        return self.micro_batch == self.first

    @property
    def is_last(self) -> bool:
        return self.micro_batch + self.apart == self.first + self.joined

    def of(self, tensor: Tensor) -> Tensor:
        """The part's rows of the whole tensor; all of it where nothing is joined."""
        if self.apart == self.joined:
            return tensor
        size = len(tensor) // self.joined
        begin = (self.micro_batch - self.first) * size
        return tensor[begin : begin + self.apart * size]


def send_boundary(
    network: Network, lane: Lane, tensor: Tensor, pipeline: int, wire: torch.dtype
) -> None:
    """Sends a tensor in the wire's dtype to the rank at a pipeline position. It is rounded in its
    own memory, so its values are lost."""
    network.send(lane, narrowed(tensor.view(-1), wire), pipeline)


def receive_boundary(
    network: Network, lane: Lane, tensor: Tensor, pipeline: int, wire: torch.dtype
) -> None:
    """Fills a tensor with what that rank sends in the wire's dtype."""
    flat = tensor.view(-1)
    network.receive(lane, landing_place(flat, wire), pipeline)
    widen(flat, wire)
