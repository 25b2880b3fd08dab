"""DiLoCo's outer step against torch's own Nesterov."""

from __future__ import annotations

import torch

from ratrain.runtime.step.outer import OuterStates


def test_outer_steps_are_those_of_torch_s_sgd_with_nesterov_s_momentum() -> None:
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(1000))
    states = OuterStates(weights.detach().clone(), torch.zeros(1000))
    theirs = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(5):
        mean = weights.detach() - 0.1 * torch.randn(1000)
        weights.grad = weights.detach() - mean  # the sign that torchft once had wrong
        theirs.step()
        states.step(mean, 0.7, 0.9)
        torch.testing.assert_close(states.weights, weights.detach())
        assert torch.equal(mean, states.weights)
