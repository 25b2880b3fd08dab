"""Tied embeddings in a run: the matrix that embedding and head hold a copy of, each in its buffer.

Both copies begin equal, see the same gradient, and are updated element by element by the same
arithmetic, so they stay equal bit by bit: on devices of one kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from ratrain.describe.parameters import LOGITS
from ratrain.models.embedding import TABLE
from ratrain.models.shapes import EMBEDDING, HEAD
from ratrain.program.units import Ints, Units
from ratrain.runtime.step.network.network import Copy
from ratrain.runtime.step.unit_state import UnitState
from ratrain.simulate.costs import Floats, Work

_MATRIX = {EMBEDDING: TABLE, HEAD: LOGITS}


def tied_range(unit: UnitState) -> slice:
    """Where the shared matrix is in a unit's flat buffers; nothing else in them is shared."""
    matrix = unit.unit.layout.by_name[_MATRIX[unit.name]]
    return slice(matrix.offset, matrix.end)


def tied_gradients(unit: UnitState) -> list[Copy]:
    """The shared matrix' part of a unit's gradient, as far as this rank updates it: the same pieces
    at both ends of a pipeline, in one order."""
    assert unit.gradient is not None
    if unit.slots is not None:
        updated = {part.begin for part in unit.parts}
        return [
            Copy(part, unit.gradient[run])
            for part, run in unit.slots.rows_of(_MATRIX[unit.name])
            if run.start in updated
        ]
    matrix = tied_range(unit)
    first, last = max(matrix.start, unit.part.begin), min(matrix.stop, unit.part.end)
    # The last owner's part may be all padding, at both ends.
    return [Copy(unit.division, unit.gradient[first:last])] if first < last else []


def add_here(embedding: list[Copy], head: list[Copy]) -> None:
    """The sum of both gradients, in both, in the order in which ranks apart add them."""
    for (_, mine), (_, theirs) in zip(embedding, head, strict=True):
        torch.add(mine, theirs, out=mine)
        theirs.copy_(mine)


def counted_once(unit: UnitState) -> list[slice]:
    """Of the pieces of a head's gradient that the norm counts, what the embedding's does not."""
    matrix = tied_range(unit)
    parts = [
        (
            slice(piece.start, min(piece.stop, matrix.start)),
            slice(max(piece.start, matrix.stop), piece.stop),
        )
        for piece in unit.counted
    ]
    return [part for both in parts for part in both if part.start < part.stop]


def tie_work(
    units: Units,
    gradient_bytes: Floats,
    update_s: Floats,
    over: Callable[[Floats, Ints], Work],
) -> Work:
    """What a TieSync costs, from what calibration measured of its rank. `over` is the work of bytes
    that go into the peer ports given.

    Ranks apart: the rank's part of the embedding's gradient (it is all matrix; `gradient_bytes`
    of the part) from each to the other, as fast as to a neighbouring stage; the link between the
    two ends itself is not measured. On one rank: five passes of memory, where the optimizer that
    was timed (`update_s`, of the part too) makes seven.
    """
    embedding = np.minimum(np.arange(len(units.rank)), units.tied_to)
    here = (units.tied_to >= 0) & (units.rank[units.tied_to] == units.rank)
    apart = (units.tied_to >= 0) & ~here
    sent = over(np.where(apart, gradient_bytes[embedding], 0.0), 2 * units.rank[units.tied_to] + 1)
    return replace(sent, fixed_s=np.where(here, update_s[embedding] * 5 / 7, sent.fixed_s))
