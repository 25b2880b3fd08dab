"""Stages of several members on real processes: micro-batches change their member between stages."""

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

from ratrain.runtime.run.reports.report import report_of

WHOLE = "all"
BATCHES = 8
ONE_TWO = ((WHOLE,), ("0, 3-5", "1-2, 6-7"))
TWO_ONE = (("0-4", "5-7"), (WHOLE,))
CROSSED = (("0, 2-3, 7", "1, 4-6"), ("1-3, 6-7", "0, 4-5"))
IDLE = (("0-2, 4", "3, 5-7"), (WHOLE, "none"))

ALONE = Setting("1f1b", learning_rate=1e-3)


def of_members(serving: tuple[tuple[str, ...], ...], **changes: Any) -> Setting:
    layers = (1, 3) if len(serving) == 2 else (1, 2, 1)
    unlike = (Unlike(layers, BATCHES, recovery=changes.pop("recovery", "none")),)
    return replace(ALONE, name="ratrain", unlike=unlike, serving=serving, **changes)


def compare(crew: Crew, setting: Setting, folder: Path) -> None:
    """The setting's run and one process have the same losses and weights."""
    alone = replace(setting, unlike=(), serving=(), name="1f1b", sharding=None, network="sockets")
    result = train(crew, setting, folder / "members")
    assert_as_alone(result, train(crew, alone, folder / "alone"))
    assert_held(result)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("serving", "changes"),
    [
        (ONE_TWO, {}),
        (TWO_ONE, {"sharding": 1, "clip_norm": 0.5}),
        (CROSSED, {"masked": True}),
        (CROSSED, {"sharding": 0, "name": "zb-h1"}),
        (CROSSED, {"sharding": 1, "recovery": "forward"}),
        (CROSSED, {"network": "staged"}),
        (IDLE, {"clip_norm": 0.5}),
        (IDLE, {"sharding": 0, "name": "gpipe"}),
        ((("0-5", "6-7", "none"), (WHOLE,)), {"sharding": 1}),
        ((("none", WHOLE), ("0", "1-7")), {"masked": True}),
        (CROSSED, {"sharding": 3, "name": "pe-zero", "clip_norm": 0.5}),
        (TWO_ONE, {"sharding": 3, "name": "pe-zero", "network": "staged"}),
    ],
    ids=str,
)
def test_members_train_as_one_process_does(
    serving: tuple[tuple[str, ...], ...], changes: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    setting = of_members(serving, **{k: v for k, v in changes.items() if k != "name"})
    compare(crew, replace(setting, name=changes.get("name", "ratrain")), tmp_path)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("serving", [ONE_TWO, CROSSED, IDLE], ids=str)
def test_every_schedule_and_timing_of_one_assignment_has_the_same_bits(
    serving: tuple[tuple[str, ...], ...], crew: Crew, tmp_path: Path
) -> None:
    first = train(crew, of_members(serving), tmp_path / "first")
    for name, sharding in (("1f1b", 0), ("gpipe", 1), ("zb-h1", 2), ("pe-zero", 3)):
        if serving is IDLE and sharding == 3:
            continue  # a member that computes nothing has no use to gather for
        setting = replace(of_members(serving, sharding=sharding), name=name)
        assert not train(crew, setting, tmp_path / name).differences(first), name
    late = train(crew, of_members(serving), tmp_path / "late", delays=3)
    assert not late.differences(first)


@pytest.mark.slow
@pytest.mark.parametrize("serving", [TWO_ONE, IDLE], ids=str)
def test_members_validate_with_the_loss_of_one_process(
    serving: tuple[tuple[str, ...], ...], crew: Crew, tmp_path: Path
) -> None:
    setting = of_members(serving, validate_every=2, held_out=11)
    result = train(crew, setting, tmp_path / "members")
    alone = replace(setting, unlike=(), serving=(), name="1f1b")
    other = train(crew, alone, tmp_path / "alone")
    assert_validated_alike(result, other)


@pytest.mark.slow
def test_a_stage_of_one_member_trains_beside_one_of_two_whose_collective_is_chosen(
    tmp_path: Path,
) -> None:
    chosen = made(tmp_path / "chosen", of_members(ONE_TWO, collective="auto"))
    start(chosen)
    direct = made(tmp_path / "direct", of_members(ONE_TWO))
    start(direct)
    assert loss_bits(chosen) == loss_bits(direct)


@pytest.mark.slow
def test_a_calibrated_run_of_members_resumes_with_the_same_bits_and_is_reported(
    tmp_path: Path,
) -> None:
    setting = of_members(IDLE, steps=6, every=2, keep=9)
    whole = made(tmp_path / "whole", setting, calibrate=True)
    start(whole)
    resumed = cut_short(whole, tmp_path / "resumed", setting, 2)
    start(resumed)
    assert loss_bits(resumed) == loss_bits(whole)
    report = report_of(whole)
    assert report["step_time_s"]["predicted"] > 0
    for row in report["memory"]:
        assert 0 < row["ledger_peak_bytes"] <= row["bound_bytes"]
