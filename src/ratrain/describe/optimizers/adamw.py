"""AdamW: decoupled weight decay as in Loshchilov and Hutter 2019, arXiv 1711.05101."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratrain.describe.amounts import BelowOne, Positive
from ratrain.describe.optimizers.optimizer import Optimizer, Plain, State, Step, declare_optimizer

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AdamKeys:
    beta1: BelowOne = 0.9  # of the mean of gradients
    beta2: BelowOne = 0.95  # of the mean of their squares
    epsilon: Positive = 1e-8  # in the denominator


def adam(
    weights: Tensor,
    gradient: Tensor,
    moment1: Tensor,
    moment2: Tensor,
    keys: AdamKeys,
    step: Step,
) -> None:
    """One step by torch's fused kernel, element by element: any division among owners gives the
    same bits."""
    import torch
    from torch.optim.adamw import adamw

    adamw(
        [weights],
        [gradient],
        [moment1],
        [moment2],
        [],
        [torch.full((), float(step.updates), device=gradient.device)],  # which it counts up
        fused=True,
        amsgrad=False,
        beta1=keys.beta1,
        beta2=keys.beta2,
        lr=step.rate,
        weight_decay=step.weight_decay,
        eps=keys.epsilon,
        maximize=False,
    )


def _update(
    weights: Tensor, gradient: Tensor, states: Sequence[Plain], keys: AdamKeys, step: Step
) -> None:
    first, second = states
    adam(weights, gradient, first.tensor, second.tensor, keys, step)


declare_optimizer(
    Optimizer(
        "adamw",
        "two fp32 moments, decoupled weight decay",
        AdamKeys,
        (State("moment1"), State("moment2")),
        _update,
        moved_bytes=28.0,  # reads weight, gradient and moments, writes all but the gradient
    )
)
