"""Ranks that compute in different dtypes, on real processes: in one pipeline, in one data group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crew import Crew
from launched import assert_same_end, cut_short, loss_bits, made, saved_steps, start
from runs_made import Setting, Unlike
from training import Result, train

# A host that is "old" computes in fp32 alone; each has one device.
BASE = Setting("1f1b", dtype="bf16", learning_rate=1e-3)
PIPELINE = replace(BASE, pipeline=2, old=(1,))
PIPELINE_BACK = replace(PIPELINE, old=(0,))
GROUP = replace(BASE, name="ratrain", data=2, old=(1,))
BOTH = replace(BASE, name="ratrain", pipeline=2, data=2, old=(1, 2))
DEPTHS = replace(GROUP, data=1, old=(2,), unlike=(Unlike((2, 2), 5), Unlike((4,), 3)))
DEGREES = replace(
    GROUP,
    data=1,
    old=(2,),
    devices_per_host=1,
    unlike=(Unlike((4,), 4, tensor=(2,)), Unlike((4,), 4)),
)
MEMBERS = replace(GROUP, data=1, unlike=(Unlike((2, 2), 8),), serving=(("0-4", "5-7"), ("all",)))
NARROWER = replace(DEGREES, old=(0, 1), unlike=(Unlike((2, 2), 8, tensor=(2, 1)),))
FIRST_HALF, SECOND_HALF = (0, 1, 2, 3), (4, 5, 6, 7)

slow = pytest.mark.slow


def assert_near(result: Result, alone: Result) -> None:
    """What rounding to bf16 leaves: far less than what a step changes."""
    assert result.loss_values == pytest.approx(alone.loss_values, rel=1e-3)
    for unit, buffers in alone.units.items():
        weights = buffers[0]
        distance = np.linalg.norm(result.units[unit][0][: len(weights)] - weights)
        assert distance < 2e-2 * np.linalg.norm(weights), unit


def assert_held(result: Result) -> None:
    """The ledger never held more than was proved."""
    assert all(0 < p <= b for p, b in zip(result.ledger_peaks, result.bounds, strict=True))


@pytest.mark.matrix
@slow
@pytest.mark.parametrize(
    "setting", [PIPELINE, PIPELINE_BACK, GROUP, BOTH, DEPTHS, DEGREES, MEMBERS, NARROWER], ids=str
)
def test_ranks_of_unlike_dtypes_train_as_one_process_of_fp32_does(
    setting: Setting, crew: Crew, tmp_path: Path
) -> None:
    result = train(crew, setting, tmp_path / "unlike")
    assert_near(result, train(crew, replace(BASE, dtype="fp32"), tmp_path / "alone"))
    assert_held(result)


@pytest.mark.matrix
@slow
@pytest.mark.parametrize("sharding", [0, 2, 3])
@pytest.mark.parametrize("silent", [FIRST_HALF, SECOND_HALF], ids=["first", "second"])
def test_a_replica_has_the_bits_of_its_own_dtype_beside_one_whose_tokens_do_not_count(
    silent: tuple[int, ...], sharding: int, crew: Crew, tmp_path: Path
) -> None:
    """Where the other adds zeros, a group of two kinds trains like one of either kind alone."""
    setting = replace(GROUP, silent=silent, sharding=sharding)
    mixed = train(crew, setting, tmp_path / "mixed")
    alike = replace(setting, old=()) if silent == SECOND_HALF else replace(setting, old=(0, 1))
    named = (("old", "fp32"),) if silent == FIRST_HALF else ()
    assert not mixed.differences(train(crew, replace(alike, dtypes=named), tmp_path / "alike"))


@pytest.mark.matrix
@slow
@pytest.mark.parametrize("layout", [(2, 1), (1, 2), (2, 2)], ids=str)
def test_kinds_that_all_compute_in_fp32_have_the_bits_of_an_fp32_job_that_sends_in_bf16(
    layout: tuple[int, int], crew: Crew, tmp_path: Path
) -> None:
    named = replace(BASE, dtypes=(("process", "fp32"),)).at(layout)
    wired = replace(BASE, dtype="fp32", gradient_wire="bf16", boundary_wire="bf16").at(layout)
    result = train(crew, named, tmp_path / "named")
    assert not result.differences(train(crew, wired, tmp_path / "wired"))
    assert_held(result)


@pytest.mark.matrix
@slow
@pytest.mark.parametrize("setting", [GROUP, BOTH, DEPTHS, DEGREES], ids=str)
def test_every_schedule_level_and_timing_of_unlike_dtypes_has_the_same_bits(
    setting: Setting, crew: Crew, tmp_path: Path
) -> None:
    first = train(crew, setting, tmp_path / "ratrain")
    others: list[dict[str, Any]] = [
        {"name": "1f1b", "sharding": 0},
        {"name": "gpipe", "sharding": 1},
        {"name": "zb-h1", "sharding": 2},
    ]
    others.append({"name": "pe-zero", "sharding": 3})
    if setting is not DEPTHS:
        others.append({"sharding": 3})
    for number, changes in enumerate(others):
        other = train(crew, replace(setting, **changes), tmp_path / str(number))
        assert not other.differences(first), changes
        assert_held(other)
    assert not train(crew, setting, tmp_path / "late", delays=3).differences(first)


@pytest.mark.matrix
@slow
@pytest.mark.parametrize("collective", ["ring", "hierarchical", "auto"])
@pytest.mark.parametrize("old", [(0,), (1,)], ids=str)
def test_every_collective_and_level_of_unlike_dtypes_has_the_sums_that_it_says(
    collective: str, old: tuple[int, ...], crew: Crew, tmp_path: Path
) -> None:
    """Two hosts of two replicas each."""
    setting = replace(GROUP, data=4, devices_per_host=2, old=old, collective=collective)
    first = train(crew, replace(setting, sharding=2), tmp_path / "2")
    assert_near(first, train(crew, replace(BASE, dtype="fp32"), tmp_path / "alone"))
    assert_held(first)
    for changes in ({"sharding": 0}, {"sharding": 3}, {"name": "pe-zero", "sharding": 3}):
        other = train(crew, replace(setting, **changes), tmp_path / str(changes))
        assert not other.differences(first), changes
        assert_held(other)


@pytest.mark.matrix
@slow
@pytest.mark.parametrize(
    "changes",
    [
        {"accumulation": "sharded"},
        {"gradient_dtype": "bf16"},
        {"error_feedback": True, "clip_norm": 0.5},
        {"model": (("tie_word_embeddings", True),)},
        {"validate_every": 1},
        {"network": "staged"},
        {"sharding": 0, "network": "staged"},
    ],
    ids=str,
)
def test_unlike_dtypes_go_with_what_else_a_job_asks_for(
    changes: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    setting = replace(BOTH, **changes)
    result = train(crew, setting, tmp_path / "unlike")
    plain = {key: changes[key] for key in ("clip_norm", "model") if key in changes}
    alone = replace(BASE, dtype="fp32", **plain)
    assert_near(result, train(crew, alone, tmp_path / "alone"))
    assert_held(result)


@slow
def test_a_step_that_overflows_in_fp16_is_skipped_by_ranks_of_fp32_too(
    crew: Crew, tmp_path: Path
) -> None:
    setting = replace(BOTH, dtype="fp16", loss_scale=2.0**40)
    result = train(crew, setting, tmp_path / "unlike")
    assert result.loss_scales == {2.0**37}
    as_before = train(crew, replace(setting, end_step=1), tmp_path / "one")
    assert all(
        ours[0].tobytes() == theirs[0].tobytes()
        for ours, theirs in zip(result.units.values(), as_before.units.values(), strict=True)
    )


@slow
def test_units_that_decide_by_themselves_decide_alike_at_every_level_beside_fp32(
    crew: Crew, tmp_path: Path
) -> None:
    setting = replace(BOTH, dtype="fp16", loss_scale=2.0**21, overflow="unit", steps=4)
    first = train(crew, setting, tmp_path / "2")
    for sharding in (0, 3):
        other = train(crew, replace(setting, sharding=sharding), tmp_path / str(sharding))
        assert not other.differences(first), sharding


@slow
def test_a_run_of_unlike_dtypes_is_resumed_with_the_same_bits_and_by_other_layouts(
    tmp_path: Path,
) -> None:
    setting = replace(BOTH, steps=6, every=2, keep=9)
    whole = made(tmp_path / "whole", setting, calibrate=True)
    start(whole)
    assert saved_steps(whole) == [2, 4, 6]
    words = "old computes in fp32, the rest in bf16, in which all send"
    assert words in whole.read_spec().precision
    resumed = cut_short(whole, tmp_path / "resumed", setting, 4)
    start(resumed)
    assert loss_bits(resumed) == loss_bits(whole)
    assert_same_end(resumed, whole)
    other = replace(setting, name="1f1b", pipeline=1, data=2, old=(0,), sharding=0)
    elsewhere = cut_short(whole, tmp_path / "elsewhere", other, 4)
    start(elsewhere)
    losses = [[row["loss"] for row in run.read_metrics()] for run in (whole, elsewhere)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
