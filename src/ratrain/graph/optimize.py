"""The optimizer's step, on parameters that are small. torch's own optimizers would bring 150 MB of
its compiler into memory, which are a partition or two here; a test holds them to the same values.
"""

from __future__ import annotations

import torch

from ratrain.graph.network import Parameters
from ratrain.graph.spec import TrainKeys

BETAS, EPSILON = (0.9, 0.999), 1e-8


class Optimizer:
    """Adam, or plain gradient descent; weight decay is added to the gradient (L2)."""

    def __init__(self, keys: TrainKeys, parameters: Parameters) -> None:
        self._keys, self._parameters = keys, parameters
        self.steps = 0
        moments = ("mean", "square") if keys.optimizer == "adam" else ()
        self.states = {
            f"{name}.{moment}": torch.zeros_like(value, requires_grad=False)
            for name, value in parameters.items()
            for moment in moments
        }

    @torch.no_grad()
    def step(self) -> None:
        """One step with the gradients that the parameters have."""
        self.steps += 1
        for name, parameter in self._parameters.items():
            assert parameter.grad is not None
            gradient = parameter.grad
            if self._keys.weight_decay:
                gradient = gradient + self._keys.weight_decay * parameter
            if self._keys.optimizer == "adam":
                self._adam(name, parameter, gradient)
            else:
                parameter.sub_(gradient, alpha=self._keys.learning_rate)

    def _adam(self, name: str, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        mean, square = self.states[f"{name}.mean"], self.states[f"{name}.square"]
        mean.lerp_(gradient, 1 - BETAS[0])
        square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        first, second = (1 - beta**self.steps for beta in BETAS)
        denominator = (square / second).sqrt_().add_(EPSILON)
        parameter.addcdiv_(mean, denominator, value=-self._keys.learning_rate / first)
