"""Adafactor: of a matrix' second moments the means of rows and of columns alone (Shazeer and Stern
2018, arXiv 1804.04235), as torch.optim.Adafactor has it: no first moment, updates clipped by their
size, steps relative to the weights.

Both means are of the whole matrix, and so is the size of the update: a matrix that sharding or a
tensor group divides is refused. In a checkpoint they stand in a matrix' first elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from ratrain.describe.amounts import Positive
from ratrain.describe.optimizers.optimizer import (
    Matrix,
    Optimizer,
    State,
    Step,
    declare_optimizer,
)
from ratrain.describe.optimizers.parts import Whole, by_parameter

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 2.0**-23
"""The least mean of squares is its square: the rounding of fp32, as torch has it."""


@dataclass(frozen=True)
class AdafactorKeys:
    beta2_decay: Positive = 0.8  # of step t the means keep 1 - t ** -beta2_decay
    least_scale: Positive = 1e-3  # steps are relative to the weights' size, or to this
    clip_update: Positive = 1.0  # the most that the size of an update may be


@dataclass(frozen=True)
class Means:
    """Of the squares of a matrix' gradients: of each row, of each column. Of a vector: each."""

    rows: Tensor
    columns: Tensor | None

    def unpack(self, out: Tensor) -> None:
        out[: len(self.rows)] = self.rows
        if self.columns is not None:
            out[len(self.rows) :][: len(self.columns)] = self.columns

    def pack(self, values: Tensor) -> None:
        self.rows.copy_(values[: len(self.rows)])
        if self.columns is not None:
            self.columns.copy_(values[len(self.rows) :][: len(self.columns)])


def _numbers(matrix: Matrix) -> tuple[int, int]:
    """Rows and columns that are kept; of a vector, and of a matrix of one row or column, each
    element."""
    if len(matrix.shape) == 1 or min(matrix.shape) == 1:
        return matrix.elements, 0
    return matrix.shape[0], matrix.shape[1]


def _means(matrix: Matrix, values: Tensor) -> Means:
    rows, columns = _numbers(matrix)
    means = Means(values.new_zeros(rows), values.new_zeros(columns) if columns else None)
    means.pack(values)
    return means


def _size(values: Tensor) -> float:
    """The root of the mean square."""
    return sqrt(float(values.square().mean()))


def _update(
    weights: Tensor, gradient: Tensor, states: Sequence[Whole], keys: AdafactorKeys, step: Step
) -> None:
    means = states[0].packed
    assert isinstance(means, Means)
    number = step.updates + 1
    new = number**-keys.beta2_decay
    rate = min(step.rate, 1 / sqrt(number))
    scale = max(keys.least_scale, _size(weights)) * rate
    if step.weight_decay:
        weights.mul_(1 - step.rate * step.weight_decay)
    if means.columns is not None:
        means.rows.lerp_(gradient.square().mean(1), new)
        means.columns.lerp_(gradient.square().mean(0), new)
        squares = means.rows.unsqueeze(1) @ means.columns.unsqueeze(0)
        squares.div_(means.rows.mean().clamp_(min=EPSILON))
    else:
        means.rows.lerp_(gradient.view(-1).square(), new)
        squares = means.rows.clone().view(gradient.shape)
    change = squares.clamp_(min=EPSILON**2).rsqrt_().mul_(gradient)
    size = _size(change) / keys.clip_update
    weights.add_(change, alpha=-scale / max(1.0, size))


declare_optimizer(
    Optimizer(
        "adafactor",
        "means of rows and columns of squared gradients; needs whole matrices",
        AdafactorKeys,
        (
            State(
                "moment2",
                bytes_of=lambda matrix: 4 * sum(_numbers(matrix)),
                hold=by_parameter(_means),
            ),
        ),
        _update,
        moved_bytes=32.0,  # the gradient three times, weight and change twice each
        whole=True,
        copies=2,
    )
)
