"""SGD with momentum, and Nesterov's where asked; weight decay is added to the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratrain.describe.amounts import BelowOne
from ratrain.describe.optimizers.optimizer import Optimizer, Plain, State, Step, declare_optimizer

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SgdKeys:
    momentum: BelowOne = 0.9  # of the sum of gradients
    nesterov: bool = False  # looks ahead by the momentum


def _update(
    weights: Tensor, gradient: Tensor, states: Sequence[Plain], keys: SgdKeys, step: Step
) -> None:
    (momentum,) = states
    if step.weight_decay:
        gradient = gradient.add(weights, alpha=step.weight_decay)
    momentum.tensor.mul_(keys.momentum).add_(gradient)
    ahead = gradient.add(momentum.tensor, alpha=keys.momentum) if keys.nesterov else momentum.tensor
    weights.add_(ahead, alpha=-step.rate)


declare_optimizer(
    Optimizer(
        "sgd",
        "one fp32 momentum",
        SgdKeys,
        (State("momentum"),),
        _update,
        moved_bytes=20.0,
        copies=2,
    )
)
