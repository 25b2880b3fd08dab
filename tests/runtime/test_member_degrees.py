"""Stages whose members have unlike tensor degrees, on real processes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from launched import assert_same_end, cut_short, loss_bits, made, saved_steps, start
from runs_made import Setting, Unlike
from test_unlike_replicas import assert_as_alone, assert_held
from training import train

from ratrain.runtime.run.reports.report import report_of

Serving = tuple[tuple[str, ...], ...]
Degrees = tuple[tuple[int, ...], ...]

MODEL = (("num_key_value_heads", 4),)
ALONE = Setting("1f1b", learning_rate=1e-3, model=MODEL)
FIRST: tuple[Serving, Degrees] = (("0-4", "5-7"), ("all",)), ((2, 1), (1,))
LAST: tuple[Serving, Degrees] = (("all",), ("0, 3-5", "1-2, 6-7")), ((2,), (1, 2))
CROSSED: tuple[Serving, Degrees] = (("0-4", "5-7"), ("0-2", "3-7")), ((2, 1), (1, 2))
IDLE: tuple[Serving, Degrees] = (("all", "none"), ("all",)), ((1, 2), (1,))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def six() -> Generator[Crew]:
    with Crew(6) as made_of_six:
        yield made_of_six


def members(at: tuple[Serving, Degrees], name: str = "ratrain", **changes: Any) -> Setting:
    serving, degrees = at
    unlike = (Unlike((1, 3), 8),)
    setting = replace(ALONE, name=name, unlike=unlike, serving=serving, serving_at=degrees)
    return replace(setting, **changes)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("at", "changes"),
    [
        (FIRST, {"clip_norm": 0.5}),
        (LAST, {"masked": True}),
        (CROSSED, {"sharding": 1, "clip_norm": 0.5, "masked": True}),
        (CROSSED, {"sharding": 3, "name": "pe-zero"}),
        (CROSSED, {"sequence_parallel": True}),
        (CROSSED, {"network": "staged"}),
        (IDLE, {}),
    ],
    ids=str,
)
def test_members_of_unlike_degrees_train_as_one_process_does(
    at: tuple[Serving, Degrees], changes: dict[str, Any], six: Crew, tmp_path: Path
) -> None:
    setting = members(at, **changes)
    result = train(six, setting, tmp_path / "members")
    kept = {key: changes[key] for key in ("clip_norm", "masked") if key in changes}
    assert_as_alone(result, train(six, replace(ALONE, **kept), tmp_path / "alone"))
    assert_held(result)


@pytest.mark.parametrize("changes", [{}, {"dtype": "bf16", "old": (2, 3)}], ids=["fp32", "unlike"])
def test_every_schedule_level_and_timing_of_their_assignment_has_the_same_bits(
    changes: dict[str, Any], six: Crew, tmp_path: Path
) -> None:
    setting = members(CROSSED, devices_per_host=1, **changes)
    first = train(six, setting, tmp_path / "ratrain")
    for name, sharding in (("1f1b", 0), ("gpipe", 1), ("zb-h1", 2), ("pe-zero", 3)):
        other = train(six, replace(setting, name=name, sharding=sharding), tmp_path / name)
        assert not other.differences(first), name
        assert_held(other)
    assert not train(six, setting, tmp_path / "late", delays=3).differences(first)


def test_their_run_is_calibrated_resumed_and_goes_on_elsewhere(tmp_path: Path) -> None:
    setting = members(CROSSED, steps=6, every=2, keep=9)
    whole = made(tmp_path / "whole", setting, calibrate=True)
    start(whole)
    assert saved_steps(whole) == [2, 4, 6]
    assert report_of(whole)["step_time_s"]["predicted"] > 0
    resumed = cut_short(whole, tmp_path / "resumed", setting, 4)
    start(resumed)
    assert loss_bits(resumed) == loss_bits(whole)
    assert_same_end(resumed, whole)
    elsewhere = cut_short(whole, tmp_path / "elsewhere", replace(ALONE, steps=6, every=2), 4)
    start(elsewhere)
    losses = [[row["loss"] for row in run.read_metrics()] for run in (whole, elsewhere)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
