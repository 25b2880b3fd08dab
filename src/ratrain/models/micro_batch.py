"""What a unit computes on: a micro-batch's tokens and what is to follow each."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ratrain.models.functions.dropout import Drawn


@dataclass(frozen=True)
class MicroBatch:
    """Token numbers [b, S] int64, and for each the one to follow; -100: not counted."""

    tokens: Tensor
    targets: Tensor
    loss_weight: float = 1.0  # what backward multiplies each token's loss by
    drawn: Drawn | None = None  # what dropout follows from; None: nothing is dropped
