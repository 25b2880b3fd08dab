"""Muon: a matrix' momentum made orthogonal by Newton-Schulz (Jordan et al. 2024, as
torch.optim.Muon has it); embeddings, heads and vectors are updated by AdamW with the same learning
rate.

The iteration multiplies the matrix with itself, in bf16: a matrix that sharding or a tensor group
divides is refused. Elements that Muon updates have no second moment in memory; in a checkpoint it
is zero there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from ratrain.describe.amounts import BelowOne, Count
from ratrain.describe.optimizers.adamw import AdamKeys, adam
from ratrain.describe.optimizers.optimizer import (
    Matrix,
    Optimizer,
    Plain,
    State,
    Step,
    declare_optimizer,
)
from ratrain.describe.optimizers.parts import Whole, by_parameter

if TYPE_CHECKING:
    from torch import Tensor

COEFFICIENTS = 3.4445, -4.775, 2.0315
_EPSILON = 1e-7


@dataclass(frozen=True)
class MuonKeys(AdamKeys):
    momentum: BelowOne = 0.95  # of the matrices' gradients
    nesterov: bool = True  # looks ahead by the momentum
    iterations: Count = 5  # of Newton-Schulz
    matched_rate: bool = True  # steps of a matrix as large as AdamW's, 0.2 sqrt(longer side)


@dataclass(frozen=True)
class Squares:
    """The second moment of what AdamW updates; nothing of a matrix of Muon's."""

    squares: Tensor

    def unpack(self, out: Tensor) -> None:
        out[: len(self.squares)] = self.squares

    def pack(self, values: Tensor) -> None:
        self.squares.copy_(values[: len(self.squares)])


def _is_muons(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and name.partition(".")[0] not in ("embedding", "head")


def _kept(matrix: Matrix) -> int:
    return 0 if _is_muons(matrix.name, matrix.shape) else matrix.elements


def _squares(matrix: Matrix, values: Tensor) -> Squares:
    return Squares(values[: _kept(matrix)].clone())


def orthogonal(matrix: Tensor, iterations: int) -> Tensor:
    """The nearest (semi-)orthogonal matrix, roughly, in bf16."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.bfloat16()
    if tall:
        x = x.T
    x = x / x.float().square().sum().sqrt().clamp(min=_EPSILON).bfloat16()
    for _ in range(iterations):
        gram = x @ x.T
        x = x.addmm(gram.addmm(gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def _update(
    weights: Tensor, gradient: Tensor, states: Sequence[Plain | Whole], keys: MuonKeys, step: Step
) -> None:
    first, second = states
    assert isinstance(first, Plain) and isinstance(second, Whole)
    momentum = first.tensor.view(weights.shape)
    if not _is_muons(step.name, tuple(weights.shape)):
        assert isinstance(second.packed, Squares)
        squares = second.packed.squares.view(weights.shape)
        adam(weights, gradient, momentum, squares, keys, step)
        return
    momentum.lerp_(gradient, 1 - keys.momentum)
    ahead = gradient.lerp(momentum, keys.momentum) if keys.nesterov else momentum
    change = orthogonal(ahead, keys.iterations)
    height, width = weights.shape
    ratio = 0.2 * sqrt(max(height, width)) if keys.matched_rate else sqrt(max(1, height / width))
    weights.mul_(1 - step.rate * step.weight_decay).add_(change, alpha=-step.rate * ratio)


def _flops(matrix: Matrix) -> float:
    """Of five iterations: two products with the whole matrix, one of its shorter side."""
    if not _is_muons(matrix.name, matrix.shape):
        return 0.0
    short, long = sorted(matrix.shape)
    return 5 * (4.0 * short**2 * long + 2.0 * short**3)


declare_optimizer(
    Optimizer(
        "muon",
        "orthogonal steps of matrices, AdamW for the rest; needs whole matrices",
        MuonKeys,
        (
            State("moment1"),
            State("moment2", bytes_of=lambda m: 4 * _kept(m), hold=by_parameter(_squares)),
        ),
        _update,
        moved_bytes=28.0,
        whole=True,
        copies=3,
        flops=_flops,
    )
)
