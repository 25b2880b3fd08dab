"""Every optimizer beside torch's own on the same gradients; and what 8 bits lose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ratrain.cost.scratch import ON_CPU
from ratrain.describe.optimizers import OPTIMIZERS, Matrix
from ratrain.describe.optimizers.adamw8bit import BLOCK
from ratrain.describe.train import TrainSpec
from ratrain.runtime.step.optimizer import OwnedPart, learning_rate

SHAPES = (("mlp.up.weight", (48, 32)), ("mlp.down.weight", (32, 48)), ("norm1.weight", (64,)))
RATE, DECAY, STEPS = 1e-2, 0.1, 5


def spec_of(name: str, **keys: Any) -> TrainSpec:
    return TrainSpec(
        steps=STEPS,
        learning_rate=RATE,
        rate_schedule="constant",
        weight_decay=DECAY,
        optimizer=name,
        keys=OPTIMIZERS[name].keys(**keys),
    )


def parameters() -> tuple[Matrix, ...]:
    """One after another, as in a unit's buffer: matrices first."""
    placed: list[Matrix] = []
    for name, shape in SHAPES:
        placed.append(Matrix(name, shape, placed[-1].run.stop if placed else 0))
    return tuple(placed)


def part_of(spec: TrainSpec, weights: Tensor) -> OwnedPart:
    inside = parameters()
    zeros = torch.zeros(len(weights))
    states = tuple(state.hold(zeros.clone(), inside) for state in spec.rule.states)
    return OwnedPart(0, len(weights), inside[-1].offset, weights, states, inside)


def gradients() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(parameters()[-1].run.stop) for _ in range(STEPS)]


def ours(spec: TrainSpec) -> Tensor:
    """Weights after the steps."""
    torch.manual_seed(0)
    part = part_of(spec, torch.randn(parameters()[-1].run.stop))
    for step, gradient in enumerate(gradients()):
        part.update(gradient.clone(), spec, step, step, 1.0)
    return part.weights


def theirs(made: Callable[[Sequence[dict[str, Any]]], torch.optim.Optimizer]) -> Tensor:
    """The same of torch's optimizer, whose vectors do not decay."""
    torch.manual_seed(0)
    weights = torch.randn(parameters()[-1].run.stop)
    leaves = [torch.nn.Parameter(weights[m.run].view(m.shape).clone()) for m in parameters()]
    groups: list[dict[str, Any]] = [
        {"params": [leaf for leaf in leaves if leaf.ndim > 1], "weight_decay": DECAY},
        {"params": [leaf for leaf in leaves if leaf.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = made(groups)
    for gradient in gradients():
        for leaf, matrix in zip(leaves, parameters(), strict=True):
            leaf.grad = gradient[matrix.run].view(matrix.shape).clone()
        optimizer.step()
    return torch.cat([leaf.detach().view(-1) for leaf in leaves])


BESIDE: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "adamw": ({}, lambda groups: torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))),
    "sgd": ({}, lambda groups: torch.optim.SGD(groups, lr=RATE, momentum=0.9)),
    "sgd nesterov": (
        {"nesterov": True},
        lambda groups: torch.optim.SGD(groups, lr=RATE, momentum=0.9, nesterov=True),
    ),
    "adafactor": ({}, lambda groups: torch.optim.Adafactor(groups, lr=RATE)),
}


@pytest.mark.parametrize("name", BESIDE)
def test_an_optimizer_updates_as_torch_s_own(name: str) -> None:
    keys, made = BESIDE[name]
    torch.testing.assert_close(
        ours(spec_of(name.split()[0], **keys)), theirs(made), rtol=1e-5, atol=1e-6
    )


def test_muon_updates_matrices_as_torch_s_muon_and_vectors_as_its_adamw() -> None:
    matrices = slice(0, parameters()[-1].offset)

    def muon(groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.Muon(groups[:1], lr=RATE, adjust_lr_fn="match_rms_adamw")

    moved = ours(spec_of("muon"))
    torch.testing.assert_close(moved[matrices], theirs(muon)[matrices], rtol=1e-5, atol=1e-6)
    adamw = theirs(BESIDE["adamw"][1])
    assert torch.equal(moved[matrices.stop :], ours(spec_of("adamw"))[matrices.stop :])
    torch.testing.assert_close(moved[matrices.stop :], adamw[matrices.stop :], rtol=1e-5, atol=1e-6)


def test_lion_steps_by_the_sign_of_its_momentum() -> None:
    weights, momentum = torch.randn(1, generator=torch.Generator().manual_seed(3)), torch.zeros(1)
    spec = spec_of("lion")
    states = tuple(state.hold(momentum.clone(), ()) for state in spec.rule.states)
    part = OwnedPart(0, 1, 1, weights.clone(), states)
    for step, gradient in enumerate((torch.tensor([2.0]), torch.tensor([-0.1]))):
        part.update(gradient.clone(), spec, step, step, 1.0)
        towards = (0.9 * momentum + 0.1 * gradient).sign()
        weights = weights * (1 - RATE * DECAY) - RATE * towards
        momentum = 0.99 * momentum + 0.01 * gradient
        torch.testing.assert_close(part.weights, weights)
        torch.testing.assert_close(part.states[0].values(), momentum)


def test_wsd_stays_and_falls_in_the_last_steps_alone() -> None:
    spec = TrainSpec(
        steps=20, warmup_steps=2, learning_rate=1.0, rate_schedule="wsd", final_rate=0.0
    )
    rates = [learning_rate(spec, step) for step in range(21)]
    assert rates[:2] == [0.5, 1.0]
    assert rates[2:16] == [1.0] * 14
    assert rates[16:] == pytest.approx([0.75, 0.5, 0.25, 0.0, 0.0])


@given(st.integers(0, 1 << 30), st.integers(1, 300), st.floats(-30, 30))
@settings(max_examples=60, deadline=None)
def test_eight_bits_lose_no_more_than_they_say_and_nothing_the_second_time(
    seed: int, size: int, octaves: float
) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 2.0**octaves
    for state, error, put in zip(
        OPTIMIZERS["adamw-8bit"].states, (0.045, 0.022), (values, values.square()), strict=True
    ):
        held = state.hold(put.clone(), ())
        kept = held.values()
        largest = torch.zeros_like(put)
        for begin in range(0, size, BLOCK):
            largest[begin : begin + BLOCK] = put[begin : begin + BLOCK].abs().max()
        in_reach = put.abs() > largest / 50_000
        assert ((kept - put).abs()[in_reach] <= error * put.abs()[in_reach]).all()
        assert (kept >= put * (1 - error)).all() or state.name == "moment1"
        again = state.hold(kept.clone(), ()).values()
        assert torch.equal(again, kept)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if not OPTIMIZERS[name].whole])
def test_an_update_piece_by_piece_is_that_of_the_whole_bit_for_bit(name: str) -> None:
    size = 2 * ON_CPU.update + 64
    spec = spec_of(name)
    torch.manual_seed(0)
    weights, steps = torch.randn(size), [torch.randn(size) for _ in range(2)]

    def updated(cuts: Sequence[int]) -> Tensor:
        ends = [*cuts, size]
        moved: list[Tensor] = []
        for begin, end in zip([0, *cuts], ends, strict=True):
            run = slice(begin, end)
            states = tuple(s.hold(torch.zeros(end - begin), ()) for s in spec.rule.states)
            part = OwnedPart(begin, end, size, weights[run].clone(), states)
            for step, gradient in enumerate(steps):
                part.update(gradient[run].clone(), spec, step, step, 1.0)
            moved.append(part.weights)
        return torch.cat(moved)

    assert torch.equal(updated(()), updated((64, 64 * 1000)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_are_as_many_bytes_as_declared(name: str) -> None:
    """What is held in memory of a unit is what the bill counts."""
    optimizer, inside = OPTIMIZERS[name], parameters()
    elements = inside[-1].run.stop
    held = [state.hold(torch.zeros(elements), inside) for state in optimizer.states]
    assert sum(map(_held_bytes, held)) == optimizer.state_bytes(elements, inside)


def _held_bytes(value: object) -> int:
    """Of all tensors in a state."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, tuple):
        return sum(_held_bytes(each) for each in value)  # pyright: ignore[reportUnknownVariableType]
    fields = getattr(value, "__dataclass_fields__", {})
    return sum(_held_bytes(getattr(value, field)) for field in fields)
