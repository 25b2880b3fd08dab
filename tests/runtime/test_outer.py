"""DiLoCo's outer step against torch's own Nesterov."""

from __future__ import annotations

import pytest
import torch

from ratrain.runtime.step.exchange.feedback import Residual
from ratrain.runtime.step.exchange.narrowing import widen_from_front
from ratrain.runtime.step.outer import OuterStates


@pytest.mark.parametrize(("rate", "momentum"), [(0.7, 0.9), (0.4, 0.8), (1.0, 0.0)])
def test_outer_steps_have_the_bits_of_torch_s_sgd_with_nesterov_s_momentum(
    rate: float, momentum: float
) -> None:
    """Which is what torchft's DiLoCo takes its outer steps with."""
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(1000))
    states = OuterStates(weights.detach().clone(), torch.zeros(1000))
    theirs = torch.optim.SGD([weights], lr=rate, momentum=momentum, nesterov=momentum > 0)
    for _ in range(20):
        trained = [weights.detach() - 0.1 * torch.randn(1000) for _ in range(2)]
        lost = [weights.detach() - each for each in trained]  # the sign that torchft once had wrong
        weights.grad = (lost[0] + lost[1]) / 2
        learnt = [states.learnt(each) for each in trained]
        theirs.step()
        mean = (learnt[0] + learnt[1]) / 2
        states.step(mean, rate, momentum)
        assert torch.equal(states.weights, weights.detach())
        assert torch.equal(mean, states.weights)


def test_what_bf16_took_away_is_sent_with_the_next_difference() -> None:
    torch.manual_seed(0)
    states = OuterStates(torch.zeros(5000), torch.zeros(5000), Residual(torch.zeros(5000)))
    meant, sent = torch.zeros(5000, dtype=torch.float64), torch.zeros(5000, dtype=torch.float64)
    for _ in range(50):
        learnt = 1e-3 * torch.randn(5000)
        meant += learnt
        copy = learnt.clone()
        narrow = states.sent(copy)
        assert narrow.dtype == torch.bfloat16 and narrow.data_ptr() == copy.data_ptr()
        expected = narrow.float()
        widen_from_front(copy, narrow)
        assert torch.equal(copy, expected)
        sent += copy
    assert states.residual is not None
    torch.testing.assert_close(sent + states.residual.kept, meant, rtol=0, atol=1e-8)
    assert (sent - meant).abs().max() < 1e-4, "no more than one step's rounding is missing"
