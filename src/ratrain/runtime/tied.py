"""Tied embeddings in a run: the matrix that embedding and head hold a copy of, each in its buffer.

Both copies begin equal, see the same gradient, and are updated element by element by the same
arithmetic, so they stay equal bit by bit: on devices of one kind.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ratrain.models.embedding import TABLE
from ratrain.models.head import LOGITS
from ratrain.models.shapes import EMBEDDING, HEAD
from ratrain.runtime.states import UnitState

_MATRIX = {EMBEDDING: TABLE, HEAD: LOGITS}


def tied_range(unit: UnitState) -> slice:
    """Where the shared matrix lies in a unit's flat buffers; nothing else of them is shared."""
    matrix = unit.unit.layout.by_name[_MATRIX[unit.name]]
    return slice(matrix.offset, matrix.end)


def add_here(embedding: Tensor, head: Tensor) -> None:
    """The sum of both gradients, in both, in the order in which ranks apart add them."""
    torch.add(embedding, head, out=embedding)
    head.copy_(embedding)


def counted_once(unit: UnitState, own: Tensor) -> Tensor:
    """Of the own share of a head's gradient, what the embedding's does not count already."""
    matrix = tied_range(unit)
    begin, end = (max(0, at - unit.own.start) for at in (matrix.start, matrix.stop))
    return torch.cat([own[:begin], own[end:]])
