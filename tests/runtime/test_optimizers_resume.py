"""Runs of every optimizer go on in another layout, and refuse the states of another optimizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from launched import cut_short, loss_bits, made, start
from runs_made import Setting

from ratrain.describe.optimizers import OPTIMIZERS
from ratrain.errors import RatrainError

BEGUN = Setting(name="1f1b", data=2, sharding=0, steps=4, every=2, learning_rate=1e-3)
CLOSE = {"adamw-8bit": 2e-3}
"""How near losses stay where others than the usual rounding of fp32 differs: blocks of 8 bits are
other elements in a tensor group."""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_goes_on_in_another_layout(name: str, tmp_path: Path) -> None:
    setting = replace(BEGUN, optimizer=name)
    whole = made(tmp_path / "whole", setting)
    start(whole)
    same = cut_short(whole, tmp_path / "same", replace(setting, pipeline=2), 2)
    start(same)
    assert loss_bits(same) == loss_bits(whole)
    other = replace(setting, data=1, pipeline=2)
    if not OPTIMIZERS[name].whole:
        other = replace(setting, tensor=2, sharding=1)
    elsewhere = cut_short(whole, tmp_path / "elsewhere", other, 2)
    start(elsewhere)
    ours, theirs = ([row["loss"] for row in run.read_metrics()] for run in (elsewhere, whole))
    assert ours == pytest.approx(theirs, rel=CLOSE.get(name, 1e-5)) and len(ours) == 4


@pytest.mark.slow
def test_the_states_of_another_optimizer_are_refused(tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", replace(BEGUN, steps=2))
    start(whole)
    other = cut_short(whole, tmp_path / "other", replace(BEGUN, optimizer="lion"), 2)
    with pytest.raises(RatrainError, match=r"the optimizer adamw, and .* is 'lion'"):
        start(other)
