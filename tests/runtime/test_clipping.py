"""What a step's norm decides, beside torch's own AdamW under a GradScaler."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.describe.optimizers import Plain
from ratrain.describe.train import TrainSpec
from ratrain.runtime.step.clipping import Clipping
from ratrain.runtime.step.optimizer import LossScale, OwnedPart, learning_rate

ELEMENTS = 96
SPEC = TrainSpec(steps=12, learning_rate=1e-2)


def gradient(step: int) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(step))


def owned() -> OwnedPart:
    """Random weights, all of them decaying; moments are zero."""
    zeros = Plain(torch.zeros(ELEMENTS)), Plain(torch.zeros(ELEMENTS))
    return OwnedPart(0, ELEMENTS, ELEMENTS, gradient(-1), zeros)


def trained(overflows: list[bool], cut: int) -> tuple[OwnedPart, dict[str, float]]:
    """The part after these steps, and the state behind them; at `cut` all but the tensors and what
    a checkpoint holds is forgotten."""
    part = owned()
    clipping = Clipping(None, LossScale(1024.0), 0)
    for step, overflow in enumerate(overflows):
        if step == cut:
            state = clipping.state_after(step - 1)
            scale = LossScale(state["loss_scale"], int(state["good_steps"]))
            clipping = Clipping(None, scale, step - int(state["updates"]))
        scaled = gradient(step) * clipping.scale
        norm = clipping.settle(step, math.inf if overflow else float(scaled.square().sum()))
        assert clipping.skips == overflow and math.isinf(norm) == overflow
        if not clipping.skips:
            part.update(scaled, SPEC, step, clipping.updates_before(step), clipping.factor)
    return part, clipping.state_after(len(overflows) - 1)


def plainly_trained(overflows: list[bool]) -> torch.Tensor:
    """The same with torch's AdamW, whose step is left out where a GradScaler would."""
    weights = gradient(-1)
    optimizer = torch.optim.AdamW(
        [weights],
        betas=(SPEC.keys.beta1, SPEC.keys.beta2),
        eps=SPEC.keys.epsilon,
        weight_decay=SPEC.weight_decay,
        fused=True,
    )
    for step, overflow in enumerate(overflows):
        optimizer.param_groups[0]["lr"] = learning_rate(SPEC, step)
        weights.grad = gradient(step)
        if not overflow:
            optimizer.step()
    return weights


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_steps_that_overflow_are_no_updates_as_under_a_grad_scaler(
    overflows: list[bool], cut: int
) -> None:
    part, state = trained(overflows, cut)
    assert torch.equal(part.weights, plainly_trained(overflows))
    assert state["updates"] == overflows.count(False)
    assert state == trained(overflows, cut=-1)[1]


def test_without_a_norm_every_step_is_an_update() -> None:
    clipping = Clipping(None, None, 2)
    assert not clipping.skips and clipping.factor == 1.0
    assert clipping.updates_before(10) == 8
    assert clipping.state_after(10) == {"updates": 9}
