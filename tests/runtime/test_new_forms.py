"""Orders, tiers and periods beyond 1F1B, on real processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from crew import Crew
from registered import declared_inside
from runs_made import Setting
from training import Result, train

RECOVERED = Setting(pipeline=2, data=2, recovery="everywhere")
RATRAIN = ("forward-recovery", "layerwise-state-pipeline", "update-prefetch")


def assert_same(first: Result, second: Result) -> None:
    assert not first.differences(second)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    "setting",
    [
        Setting("breadth-first", 2, 2),
        Setting("breadth-first", 2, 2, virtual=2),
        Setting("breadth-first", 2, 1, virtual=2, dtype="bf16"),
        Setting("pe-zero", 2, 2, virtual=2),
        Setting("pe-zero", 1, 3, sequences=9),
        Setting("ratrain", 2, 2, skeleton="zb-h1", recovery="everywhere"),
        Setting("ratrain", 2, 1, virtual=2, skeleton="interleaved"),
    ],
    ids=str,
)
def test_other_orders_train_with_the_bits_of_plain_1f1b(
    crew: Crew, tmp_path: Path, setting: Setting
) -> None:
    plain = replace(setting, name="1f1b", skeleton=None, virtual=1)
    other = train(crew, setting, tmp_path / "other")
    assert_same(other, train(crew, plain, tmp_path / "plain"))
    assert all(p <= b for p, b in zip(other.ledger_peaks, other.bounds, strict=True))


@pytest.mark.slow
def test_an_order_out_of_a_csv_file_trains_with_the_bits_of_plain_1f1b(
    crew: Crew, tmp_path: Path
) -> None:
    """An order that no name has: rank 0 runs four ahead, rank 1 takes them in pairs."""
    order = tmp_path / "pairs.csv"
    order.write_text("0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n" + "1F0,1F1,1B0,1B1,1F2,1F3,1B2,1B3\n")
    setting = Setting("ratrain", 2, 2, skeleton=str(order), recovery="everywhere")
    with declared_inside():
        other = train(crew, setting, tmp_path / "other")
    plain = replace(setting, name="1f1b", skeleton=None)
    assert_same(other, train(crew, plain, tmp_path / "plain"))
    assert all(p <= b for p, b in zip(other.ledger_peaks, other.bounds, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("skeleton", ["1f1b", "breadth-first"])
def test_inputs_in_host_memory_change_no_bit_and_keep_both_bounds(
    crew: Crew, tmp_path: Path, skeleton: str
) -> None:
    kept = replace(RECOVERED, skeleton=skeleton)
    away = replace(kept, passes=(*RATRAIN, "offload-inputs"))
    offloaded = train(crew, away, tmp_path / "away")
    usual = train(crew, kept, tmp_path / "kept")
    assert_same(offloaded, usual)
    assert all(p <= b for p, b in zip(offloaded.ledger_peaks, offloaded.bounds, strict=True))
    assert all(0 < p <= b for p, b in zip(offloaded.host_peaks, offloaded.host_bounds, strict=True))
    assert not any(usual.host_peaks)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("masked", "tied"),
    [(False, False), (True, False), (False, True)],
    ids=["whole", "masked", "tied"],
)
def test_weights_averaged_once_in_three_steps_are_the_mean_of_replicas_that_trained_alone(
    crew: Crew, tmp_path: Path, masked: bool, tied: bool
) -> None:
    """With masked targets the replicas count unlike numbers of tokens; each divides by its own."""
    model = (("tie_word_embeddings", tied),)
    setting = Setting("1f1b", 2, 2, average_every=3, masked=masked, model=model)
    counts = [(setting.samples(0, first, 4)[1] >= 0).sum() for first in (0, 4)]
    assert (counts[0] != counts[1]) == masked
    together = train(crew, setting, tmp_path / "together")
    alone = [
        train(
            crew,
            Setting("1f1b", 2, 1, sequences=4, first=first, masked=masked, model=model),
            tmp_path / str(first),
        )
        for first in (0, 4)
    ]
    for unit, buffers in together.units.items():
        for kind, mean in enumerate(buffers):
            a, b = (result.units[unit][kind] for result in alone)
            assert np.array_equal(mean, (a + b) / np.float32(2)), (unit, kind)
