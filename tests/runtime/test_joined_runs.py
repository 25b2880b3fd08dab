"""Stages that compute other numbers of micro-batches at once, on real processes: boundary tensors
are joined and cut where they meet, and the numbers are those of one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from launched import cut_short, loss_bits, made, start
from runs_made import Setting, Unlike
from test_unlike_replicas import assert_as_alone, assert_held, assert_validated_alike
from training import train

from ratrain.report.facts.run import contents_of_run
from ratrain.runtime.run.reports.report import report_of

ALONE = Setting("1f1b", learning_rate=1e-3)
ONE_TWO = (Unlike((2, 2), 8, joined=(1, 2)),)
FOUR_ONE = (Unlike((1, 3), 8, joined=(4, 1)),)
UP_AND_DOWN = (Unlike((1, 2, 1), 8, joined=(2, 1, 4)),)
ROWS_OF_TWO = (Unlike((2, 2), 4, micro_batch=2, joined=(2, 1)),)
TWO_REPLICAS = (Unlike((3, 1), 4, joined=(1, 4)), Unlike((1, 3), 4, joined=(2, 1)))
OTHER_DEGREES = (Unlike((2, 2), 8, joined=(2, 1), tensor=(2, 1)),)


def joining(replicas: tuple[Unlike, ...], **changes: Any) -> Setting:
    return replace(ALONE, **{"name": "ratrain", "unlike": replicas, **changes})


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("replicas", "changes"),
    [
        (ONE_TWO, {"masked": True}),
        (FOUR_ONE, {"name": "gpipe", "clip_norm": 0.5}),
        (UP_AND_DOWN, {}),
        (UP_AND_DOWN, {"name": "zb-h1", "sharding": 0, "masked": True}),
        (UP_AND_DOWN, {"name": "breadth-first", "network": "staged"}),
        (ROWS_OF_TWO, {"name": "backward-checkpoint"}),
        (TWO_REPLICAS, {"masked": True, "clip_norm": 0.5}),
        (TWO_REPLICAS, {"name": "pe-zero", "sharding": 3}),
        (OTHER_DEGREES, {"masked": True}),
    ],
    ids=lambda given: " ".join(map(str, given if isinstance(given, tuple) else given.items())),
)
def test_stages_that_join_micro_batches_train_as_one_process_does(
    replicas: tuple[Unlike, ...], changes: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    setting = joining(replicas, **changes)
    alone = replace(setting, unlike=(), name="1f1b", sharding=None, network="sockets")
    result = train(crew, setting, tmp_path / "joined")
    assert_as_alone(result, train(crew, alone, tmp_path / "alone"))
    assert_held(result)


@pytest.mark.slow
def test_a_job_whose_layout_joins_trains_as_one_process_does(crew: Crew, tmp_path: Path) -> None:
    setting = replace(ALONE, name="ratrain", pipeline=2, data=2, joined=(1, 2), masked=True)
    result = train(crew, setting, tmp_path / "joined")
    alone = replace(setting, name="1f1b", pipeline=1, data=1, joined=())
    assert_as_alone(result, train(crew, alone, tmp_path / "alone"))
    assert_held(result)


@pytest.mark.slow
def test_every_schedule_and_timing_of_the_same_sizes_has_the_same_bits(
    crew: Crew, tmp_path: Path
) -> None:
    first = train(crew, joining(UP_AND_DOWN), tmp_path / "first")
    for name, sharding in (("1f1b", 0), ("gpipe", 1), ("zb-h1", 2), ("breadth-first", 1)):
        setting = joining(UP_AND_DOWN, name=name, sharding=sharding)
        assert not train(crew, setting, tmp_path / name).differences(first), name
    late = train(crew, joining(UP_AND_DOWN), tmp_path / "late", delays=3)
    assert not late.differences(first)


@pytest.mark.slow
def test_joined_micro_batches_validate_with_the_loss_of_one_process(
    crew: Crew, tmp_path: Path
) -> None:
    setting = joining(TWO_REPLICAS, validate_every=2, held_out=11)
    result = train(crew, setting, tmp_path / "joined")
    other = train(crew, replace(setting, unlike=(), name="1f1b"), tmp_path / "alone")
    assert_validated_alike(result, other)


@pytest.mark.slow
def test_a_calibrated_run_of_other_sizes_resumes_and_goes_to_and_from_one_size(
    tmp_path: Path,
) -> None:
    """Its ledger stays within the proof, its checkpoints are those of any layout."""
    setting = joining(UP_AND_DOWN, steps=6, every=2, keep=9)
    whole = made(tmp_path / "whole", setting, calibrate=True)
    start(whole)
    resumed = cut_short(whole, tmp_path / "resumed", setting, 2)
    start(resumed)
    assert loss_bits(resumed) == loss_bits(whole)
    report = report_of(whole)
    assert report["step_time_s"]["predicted"] > 0
    assert all(0 < row["ledger_peak_bytes"] <= row["bound_bytes"] for row in report["memory"])
    contents = contents_of_run(whole.path)
    assert contents.plan is not None
    assert "2, 1, 4 sequences at once per rank" in dict(contents.plan.facts)["Replica 0"]
    regular = replace(setting, unlike=(), pipeline=2, data=2)
    to_regular = cut_short(whole, tmp_path / "regular", regular, 2)
    start(to_regular)
    back = cut_short(to_regular, tmp_path / "back", setting, 4)
    start(back)
    expected = [row["loss"] for row in whole.read_metrics()]
    for run in (to_regular, back):
        assert [row["loss"] for row in run.read_metrics()] == pytest.approx(expected, rel=1e-5)
