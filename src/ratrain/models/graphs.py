"""The graph that autograd keeps of a unit's forward, and the way back through it.

`torch.autograd.grad` imports SymPy to compare the shape of a gradient that it is given with that of
the output: 40 MB and 1.5 s of processor time on every rank. So the graph ends in a scalar, for
which it makes its own gradient, and a function there passes ours on instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge


class Handed:
    """The gradient of an output, handed to the end of its graph."""

    def __init__(self) -> None:
        self.gradient: Tensor | None = None


class Graph(NamedTuple):
    """What backward needs: the end of autograd's graph, the leaf at its beginning, and where the
    output's gradient is put."""

    edge: Any
    leaf: Tensor
    handed: Handed
    kept: Any = None  # what holds the tensors that autograd keeps, where that is another


def graph_of(output: Tensor, leaf: Tensor, kept: Any = None) -> Graph:
    """The graph from a leaf to an output."""
    handed = Handed()
    return Graph(get_gradient_edge(_End.apply(output, handed)), leaf, handed, kept)


def gradient_of_leaf(graph: Graph, gradient: Tensor) -> Tensor | None:
    """The leaf's gradient by the output's; None where the output does not depend on it. A graph can
    be gone through once."""
    graph.handed.gradient = gradient
    (of_leaf,) = torch.autograd.grad([graph.edge], [graph.leaf], allow_unused=True)
    return of_leaf


class _End(torch.autograd.Function):
    """An output as a scalar, whose gradient becomes the one that was handed over."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, handed: Handed) -> Tensor:
        ctx.handed = handed
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, None]:
        gradient, ctx.handed.gradient = ctx.handed.gradient, None
        return gradient, None
