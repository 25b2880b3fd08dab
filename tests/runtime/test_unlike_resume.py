"""Runs of replicas that differ, from start to end: saved, killed, resumed, reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crew import Crew
from launched import (
    assert_same_end,
    cut_short,
    killer,
    loss_bits,
    made,
    meanwhile,
    saved_steps,
    start,
    steps_done,
)
from runs_made import Setting, Unlike, write_job, write_plan, write_text
from training import train

from ratrain.checkpoint.listing import listed
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.errors import RunFailed, SpecError
from ratrain.report.facts.run import contents_of_run
from ratrain.runtime.run.prepare import RunRequest, prepare_run
from ratrain.runtime.run.reports.itemise import KINDS
from ratrain.runtime.run.reports.report import report_of
from ratrain.runtime.run_folder import RunFolder

STEPS, HALF = 8, 4
REGULAR = Setting(pipeline=2, data=2, steps=STEPS, every=2, keep=9, learning_rate=1e-3)
DEPTHS = replace(REGULAR, unlike=(Unlike((3, 1), 3, micro_batch=2), Unlike((4,), 2)))
CUTS = replace(REGULAR, sharding=1, unlike=(Unlike((1, 3), 5), Unlike((2, 2), 3)))

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """An undisturbed run of replicas that differ, calibrated; it kept all its checkpoints."""
    folder = made(tmp_path_factory.mktemp("whole"), DEPTHS, calibrate=True)
    start(folder)
    assert saved_steps(folder) == [2, 4, 6, 8]
    return folder


@pytest.fixture(scope="module")
def regular(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = made(tmp_path_factory.mktemp("regular"), REGULAR)
    start(folder)
    return folder


@slow
def test_a_killed_run_of_unlike_replicas_goes_on_with_the_same_bits(
    whole: RunFolder, tmp_path: Path
) -> None:
    folder = made(tmp_path, DEPTHS)
    with meanwhile(killer(folder, 1, lambda: steps_done(folder) >= 5)), pytest.raises(RunFailed):
        start(folder)
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)


@slow
def test_shares_of_seven_and_five_take_every_sample_of_two_epochs_and_resume_in_the_second(
    tmp_path: Path,
) -> None:
    """A sample belongs to a place in the whole batch, not to a replica."""
    shares = (Unlike((2, 2), 7), Unlike((4,), 5))
    setting = replace(REGULAR, sequences=12, steps=6, unlike=shares)
    alone = replace(setting, unlike=(), name="1f1b", pipeline=1, data=1)
    runs: dict[str, RunFolder] = {}
    for name, each in (("shares", setting), ("alone", alone)):
        (tmp_path / name).mkdir()
        # Its last sample is half of an epoch's fourth batch, so that the epochs meet in a step.
        write_text(tmp_path / name / "text.txt", characters=42 * each.sequence_length + 1)
        runs[name] = made(tmp_path / name, replace(each, files=("text.txt",)))
        start(runs[name])
    losses = [[row["loss"] for row in run.read_metrics()] for run in runs.values()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    (tmp_path / "resumed").mkdir()
    (tmp_path / "resumed" / "text.txt").write_bytes((tmp_path / "shares/text.txt").read_bytes())
    resumed = cut_short(
        runs["shares"], tmp_path / "resumed", replace(setting, files=("text.txt",)), HALF
    )
    start(resumed)
    assert loss_bits(resumed) == loss_bits(runs["shares"])


@slow
def test_another_schedule_goes_on_bit_by_bit_from_unlike_replicas(
    whole: RunFolder, tmp_path: Path
) -> None:
    folder = cut_short(whole, tmp_path, replace(DEPTHS, name="zb-h1", sharding=0), HALF)
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)


@pytest.mark.matrix
@slow
@pytest.mark.parametrize(
    ("setting", "other"), [(REGULAR, DEPTHS), (DEPTHS, REGULAR), (DEPTHS, CUTS)], ids=str
)
def test_a_checkpoint_goes_on_from_and_to_unlike_replicas(
    setting: Setting, other: Setting, whole: RunFolder, regular: RunFolder, tmp_path: Path
) -> None:
    saved = whole if setting is DEPTHS else regular
    folder = cut_short(saved, tmp_path, other, HALF)
    start(folder)
    theirs = [row["loss"] for row in saved.read_metrics()]
    ours = [row["loss"] for row in folder.read_metrics()]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert len(ours) == STEPS and ours[HALF] != ours[HALF - 1]


@pytest.mark.matrix
@slow
@pytest.mark.parametrize("other", [REGULAR, REGULAR.at((1, 1)), DEPTHS, CUTS], ids=str)
def test_every_layout_reads_the_same_tensors_from_a_checkpoint_of_unlike_replicas(
    other: Setting, whole: RunFolder, regular: RunFolder, crew: Crew, tmp_path: Path
) -> None:
    for number, saved in enumerate((whole, regular)):
        path = Path(str(listed(saved.checkpoints)[-1].path))
        result = train(crew, other, tmp_path / str(number), checkpoint=path)
        checkpoint = open_checkpoint(path)
        assert not result.losses and set(result.units) == set(checkpoint.manifest.meta.units)
        for unit, size in checkpoint.manifest.meta.units.items():
            for kind, values in zip(
                ("weights", "moment1", "moment2"), result.units[unit], strict=True
            ):
                saved_values = checkpoint.read_range(unit, kind, 0, size)
                assert np.any(saved_values) and values[:size].tobytes() == saved_values.tobytes()


@slow
def test_a_run_of_unlike_replicas_is_reported_with_its_prediction_and_its_memory(
    whole: RunFolder,
) -> None:
    report = report_of(whole)
    assert [row["program_rank"] for row in report["memory"]] == [0, 2, 1]
    for row in report["memory"]:
        assert 0 < row["ledger_peak_bytes"] <= row["bound_bytes"] <= row["budget_bytes"]
    assert report["step_time_s"]["predicted"] > 0
    assert {kind["kind"] for kind in report["kinds"] if kind["measured_s"] is not None} == set(
        KINDS
    )
    contents = contents_of_run(whole.path)
    assert contents.plan is not None
    facts = dict(contents.plan.facts)
    assert facts["Layout"] == "2 replicas"
    assert facts["Replica 0"] == (
        "3+1 layers, 3 micro-batches of 2, activations kept on every stage"
    )
    assert any("replicas of this run differ" in line for line in contents.left_out)


# ---- what is refused ------------------------------------------------------------------------


def every_stage(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(plan: dict[str, Any]) -> None:
        for replica in plan["replicas"]:
            for stage in replica["stages"]:
                stage[key] = value

    return change


def missing_sequences(plan: dict[str, Any]) -> None:
    plan["replicas"][0]["micro_batches"] = 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (every_stage("sharding", 3), "cannot gather views for every use"),
        (missing_sequences, "= 10 sequences, not 8"),
    ],
)
def test_what_unlike_replicas_cannot_do_is_refused_before_any_rank_starts(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    setting = replace(DEPTHS, files=("none.txt",))
    job, path = write_job(tmp_path, setting), write_plan(tmp_path, setting)
    assert path is not None
    plan = json.loads(path.read_text())
    change(plan)
    path.write_text(json.dumps(plan))
    with pytest.raises(SpecError, match=message) as refused:
        prepare_run(RunRequest(job, plan_path=path))
    assert str(path) in refused.value.place and refused.value.fix
