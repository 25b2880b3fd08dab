from dataclasses import dataclass

import torch

from ratrain.describe.amounts import BelowOne, Positive
from ratrain.describe.optimizers import Optimizer, State, declare_optimizer


@dataclass(frozen=True)
class Keys:
    beta1: BelowOne = 0.9  # of the mean of gradients
    beta2: BelowOne = 0.999  # by which the largest gradient fades
    epsilon: Positive = 1e-8


def update(weights, gradient, states, keys, step):
    """In place, on any piece of a unit's elements: all in fp32."""
    mean, largest = (state.tensor for state in states)
    weights.mul_(1 - step.rate * step.weight_decay)
    mean.lerp_(gradient, 1 - keys.beta1)
    torch.maximum(largest.mul_(keys.beta2), gradient.abs_().add_(keys.epsilon), out=largest)
    rate = step.rate / (1 - keys.beta1 ** (step.updates + 1))
    weights.addcdiv_(mean, largest, value=-rate)


states = State("mean"), State("largest")
declare_optimizer(
    Optimizer("adamax", "the largest gradient", Keys, states, update, moved_bytes=28.0, copies=1)
)
