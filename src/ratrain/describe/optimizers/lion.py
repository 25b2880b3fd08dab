"""Lion: the sign of an interpolated momentum (Chen et al. 2023, arXiv 2302.06675)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratrain.describe.amounts import BelowOne
from ratrain.describe.optimizers.optimizer import Optimizer, Plain, State, Step, declare_optimizer

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LionKeys:
    beta1: BelowOne = 0.9  # of the momentum in the step's direction
    beta2: BelowOne = 0.99  # of the momentum that is kept


def _update(
    weights: Tensor, gradient: Tensor, states: Sequence[Plain], keys: LionKeys, step: Step
) -> None:
    momentum = states[0].tensor
    direction = momentum.mul(keys.beta1).add_(gradient, alpha=1 - keys.beta1).sign_()
    weights.mul_(1 - step.rate * step.weight_decay).add_(direction, alpha=-step.rate)
    momentum.mul_(keys.beta2).add_(gradient, alpha=1 - keys.beta2)


declare_optimizer(
    Optimizer(
        "lion",
        "one fp32 momentum, of whose direction the sign alone is used",
        LionKeys,
        (State("momentum"),),
        _update,
        moved_bytes=20.0,
        copies=1,
    )
)
