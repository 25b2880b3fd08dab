"""Initial weights depend on the seed and on nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import GROUPED, LLAMA

from ratrain.models.initialise import initial_parameter, initial_range
from ratrain.models.shapes import unit_layout


@settings(deadline=None)
@given(data=st.data(), unit=st.sampled_from(["e", "0", "1", "h"]))
def test_a_range_is_the_part_of_the_whole(data: st.DataObject, unit: str) -> None:
    layout = unit_layout(GROUPED, unit)
    whole = initial_range(GROUPED, unit, layout, 0, layout.size, seed=1)
    begin = data.draw(st.integers(0, layout.size))
    end = data.draw(st.integers(begin, layout.size + 128))
    part = initial_range(GROUPED, unit, layout, begin, end, seed=1)
    padded = torch.cat([whole, torch.zeros(128)])
    assert torch.equal(part, padded[begin:end])


def test_every_parameter_has_its_own_numbers_and_its_deviation() -> None:
    wide = replace(LLAMA, hidden=128, head_dim=32, ffn=256)
    seen: list[torch.Tensor] = []
    for unit in ("e", "0", "1", "h"):
        for parameter in unit_layout(wide, unit).parameters:
            values = initial_parameter(wide, unit, parameter.name, parameter.shape, seed=4)
            if len(parameter.shape) == 1:
                assert torch.equal(values, torch.ones(128))
                continue
            onto_residual = parameter.name in ("attention.output.weight", "mlp.down.weight")
            deviation = 0.02 / 2 if onto_residual else 0.02  # sqrt(2 x 2 layers)
            assert values.std().item() == pytest.approx(deviation, rel=0.05)
            first = values.flatten()[:16] / deviation
            assert not any(torch.equal(first, other) for other in seen)
            seen.append(first)


def test_another_seed_gives_other_numbers_and_the_same_seed_the_same() -> None:
    layout = unit_layout(LLAMA, "0")
    a, again, b = (initial_range(LLAMA, "0", layout, 0, layout.size, seed=s) for s in (1, 1, 2))
    assert torch.equal(a, again) and not torch.equal(a, b)


def test_biases_begin_at_zero() -> None:
    assert not initial_parameter(GROUPED, "0", "attention.q.bias", (64,), seed=1).any()
