"""The outer optimizer: what replicas learnt between two means of a unit, as a gradient (DiLoCo).

    d = w - mean                        w: weights as the last outer step left them
    m = momentum m + d
    w = w - rate (d + momentum m)       Nesterov's step

All replicas have the same mean, so the same states and the same result, bit by bit. With rate 1 and
momentum 0 the result is the mean but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class OuterStates:
    """Of a unit, whole, on every replica; flat."""

    weights: Tensor
    momentum: Tensor

    def step(self, mean: Tensor, rate: float, momentum: float) -> None:
        """An outer step; `mean` becomes the weights behind it. Takes no memory besides."""
        learnt = mean.neg_().add_(self.weights)
        self.momentum.mul_(momentum).add_(learnt)
        self.weights.sub_(learnt, alpha=rate).sub_(self.momentum, alpha=rate * momentum)
        mean.copy_(self.weights)
