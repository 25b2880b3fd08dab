"""Tensor groups: the numbers of one rank to rounding, and among themselves bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from crew import Crew
from runs_made import Setting
from training import Result, train

pytestmark = pytest.mark.slow

WIDE = (("num_key_value_heads", 4),)


def nearly_equal(found: Result, expected: Result) -> bool:
    """Losses, and weights after the steps, to the rounding of fp32."""
    assert found.loss_values == pytest.approx(expected.loss_values, rel=5e-6)
    assert found.units.keys() == expected.units.keys()
    for unit, buffers in found.units.items():
        for kind, (a, b) in enumerate(zip(buffers, expected.units[unit], strict=True)):
            off = float(np.abs(a - b).max())
            assert off <= (5e-4 if kind == 0 else 1e-5), f"{unit} {'wmv'[kind]}: by {off:g}"
    return True


@pytest.mark.parametrize("tensor", [2, 4])
@pytest.mark.parametrize("name", ["tensor-parallel-heavy", "ratrain", "zb-h1"])
def test_a_tensor_group_gives_one_rank_s_numbers(
    tensor: int, name: str, crew: Crew, tmp_path: Path
) -> None:
    setting = Setting("1f1b", steps=4, model=WIDE, learning_rate=1e-3)
    alone = train(crew, setting, tmp_path / "alone")
    found = train(crew, replace(setting, name=name, tensor=tensor), tmp_path / "group")
    assert nearly_equal(found, alone)
