"""Dropout on real ranks: the same bits in every layout, within the proof."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from runs_made import Setting
from test_family_runs import keys_of
from training import train

DROPPING = (("dropout", 0.2),)
PARALLEL = tuple(keys_of("gpt_neox").items())
TWO = Setting(pipeline=2, data=2, steps=4, train=DROPPING)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    "change",
    [
        {"recovery": "everywhere"},
        {"name": "zero3-heavy", "sharding": 3},
        {"name": "zb-h1"},
        {"virtual": 2, "skeleton": "interleaved"},
        {"pipeline": 4, "data": 1},
        {"pipeline": 1, "data": 4},
        {"pipeline": 1, "data": 1, "micro_batch": 4},
        {"data": 1, "tensor": 2},
        {"data": 1, "tensor": 2, "sequence_parallel": True, "micro_batch": 2},
        {"data": 1, "tensor": 2, "sequence_parallel": True, "model": PARALLEL},
    ],
    ids=lambda change: " ".join(
        f"{k}={'GPT-NeoX' if k == 'model' else v}" for k, v in change.items()
    ),
)
def test_every_layout_drops_the_same(crew: Crew, tmp_path: Path, change: dict[str, Any]) -> None:
    usual = train(crew, replace(TWO, model=change.get("model", ())), tmp_path / "usual")
    changed = train(crew, replace(TWO, **change), tmp_path / "changed")
    if {"pipeline", "data", "micro_batch", "tensor"} & set(change):  # sums in another order
        assert changed.loss_values == pytest.approx(usual.loss_values, rel=2e-6)
    else:
        assert not changed.differences(usual)
    for result in (usual, changed):
        assert all(a <= b for a, b in zip(result.ledger_peaks, result.bounds, strict=True))


@pytest.mark.slow
def test_dropout_changes_training_and_no_validation_of_the_first_weights(
    crew: Crew, tmp_path: Path
) -> None:
    still = replace(TWO, steps=1, learning_rate=1e-12, validate_every=1)
    dropping = train(crew, still, tmp_path / "dropping")
    without = train(crew, replace(still, train=()), tmp_path / "without")
    assert dropping.losses != without.losses
    assert float.fromhex(dropping.validated[0][1]) == pytest.approx(
        float.fromhex(without.validated[0][1]), rel=1e-6
    )
