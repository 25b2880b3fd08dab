"""The outer optimizer: what replicas learnt between two means of a unit, as a gradient (DiLoCo).

    d = mean of (weights - w)           w: weights as the last outer step left them
    m = momentum m - d
    w = w + rate (d - momentum m)       Nesterov's step, with the bits of torch's SGD

All replicas have the same mean, so the same states and the same result, bit by bit. With rate 1 and
momentum 0 the result is the mean but for rounding. What is averaged may be sent in bf16: it is a
difference, and what rounding took away is sent with the next one (`feedback`). The owner of a part
rounds its mean once more, which is the same on all replicas and is not fed back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ratrain.runtime.step.exchange.feedback import Residual

NARROW = torch.bfloat16


@dataclass
class OuterStates:
    """Of a unit, whole, on every replica; flat. `residual`: where it is sent in 16 bits."""

    weights: Tensor
    momentum: Tensor
    residual: Residual | None = None

    def learnt(self, weights: Tensor) -> Tensor:
        """What a replica's weights have gained since the last outer step."""
        return weights - self.weights

    def sent(self, learnt: Tensor) -> Tensor:
        """The same as it is sent, in its own memory."""
        if self.residual is None:
            return learnt
        return self.residual.narrowed(learnt, NARROW, first=True, scale=1.0)

    def step(self, mean: Tensor, rate: float, momentum: float) -> None:
        """An outer step by the mean of what replicas learnt, which becomes the weights behind it.
        Takes no memory besides."""
        self.momentum.mul_(momentum).sub_(mean)
        self.weights.add_(mean.sub_(self.momentum, alpha=momentum), alpha=rate)
        mean.copy_(self.weights)
