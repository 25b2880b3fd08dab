"""Boundary tensors as messages: activations between stages, and their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from ratrain.program.kind import Lane
from ratrain.runtime.step.narrowing import landing_place, narrowed, widen
from ratrain.runtime.step.network import Network


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
