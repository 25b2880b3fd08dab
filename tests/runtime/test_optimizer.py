"""AdamW on a part of a unit's buffer."""

from __future__ import annotations

import pytest
import torch

from ratrain.cost.scratch import ON_CPU
from ratrain.describe.optimizers import Plain
from ratrain.describe.train import TrainSpec
from ratrain.runtime.step.optimizer import OwnedPart

PIECE = ON_CPU.update
SPEC = TrainSpec(steps=10, learning_rate=1e-2, rate_schedule="constant", weight_decay=0.1)


@pytest.mark.parametrize("decaying", [0, 7, PIECE + 5, 2 * PIECE + 64])
def test_an_update_piece_by_piece_is_that_of_the_whole(decaying: int) -> None:
    size = 2 * PIECE + 64
    torch.manual_seed(0)
    weights, gradients = torch.randn(size), [torch.randn(size) for _ in range(3)]
    whole = [
        torch.nn.Parameter(part.clone()) for part in weights.split([decaying, size - decaying])
    ]
    reference = torch.optim.AdamW(
        [
            {"params": whole[:1], "weight_decay": SPEC.weight_decay},
            {"params": whole[1:], "weight_decay": 0.0},
        ],
        lr=SPEC.learning_rate,
        betas=(SPEC.keys.beta1, SPEC.keys.beta2),
        eps=SPEC.keys.epsilon,
        fused=True,
    )
    zeros = Plain(torch.zeros(size)), Plain(torch.zeros(size))
    part = OwnedPart(0, size, decaying, weights, zeros)
    for step, gradient in enumerate(gradients):
        part.update(gradient.clone(), SPEC, step, step, 1.0)
        for parameter, piece in zip(
            whole, gradient.split([decaying, size - decaying]), strict=True
        ):
            parameter.grad = piece.clone()
        reference.step()
        assert torch.equal(weights, torch.cat([parameter.detach() for parameter in whole]))
