"""Runs of unlike tensor degrees, from start to end: saved, killed, resumed, reported."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
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
from runs_made import Setting, Unlike
from training import train

from ratrain.checkpoint.listing import listed
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.errors import RunFailed
from ratrain.models.division import WHOLE
from ratrain.models.initialise import initial_range
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.plan.layout.jobs import load_job
from ratrain.report.facts.run import contents_of_run
from ratrain.runtime.run.reports.itemise import KINDS as TIMES
from ratrain.runtime.run.reports.report import report_of
from ratrain.runtime.run.trained import trained_model
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.step.tensor_parts import StoredParts, stored_degrees

STEPS, HALF = 8, 4
MODEL = (("num_key_value_heads", 4),)
REGULAR = Setting(pipeline=2, steps=STEPS, every=2, keep=9, learning_rate=1e-3, model=MODEL)
STAGES = replace(REGULAR, unlike=(Unlike((3, 1), 8, tensor=(1, 2)),))
REPLICAS = replace(
    REGULAR,
    unlike=(Unlike((2, 2), 3, micro_batch=2, tensor=(1, 2)), Unlike((4,), 2, tensor=(2,))),
)
WIDE = replace(REGULAR, pipeline=1, tensor=2, unlike=())

pytestmark = pytest.mark.slow

KINDS = ("weights", "moment1", "moment2")


@pytest.fixture(scope="module")
def five() -> Generator[Crew]:
    with Crew(5) as made_of_five:
        yield made_of_five


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """An undisturbed run, calibrated; it kept all its checkpoints."""
    folder = made(tmp_path_factory.mktemp("whole"), REPLICAS, calibrate=True)
    start(folder)
    assert saved_steps(folder) == [2, 4, 6, 8]
    return folder


@pytest.fixture(scope="module")
def regular(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = made(tmp_path_factory.mktemp("regular"), REGULAR)
    start(folder)
    return folder


def test_level_three_goes_on_with_the_same_bits_from_level_two_and_back(
    whole: RunFolder, tmp_path: Path
) -> None:
    gathered = replace(REPLICAS, name="pe-zero", sharding=3)
    there = cut_short(whole, tmp_path / "there", gathered, HALF)
    start(there)
    assert loss_bits(there) == loss_bits(whole)
    assert_same_end(there, whole)
    back = cut_short(there, tmp_path / "back", REPLICAS, STEPS - 2)
    start(back)
    assert loss_bits(back) == loss_bits(whole)
    assert_same_end(back, whole)


def test_a_run_that_gathers_once_a_pass_times_its_ops(tmp_path: Path) -> None:
    gathered = replace(REPLICAS, name="pe-zero", sharding=3, steps=2)
    folder = made(tmp_path, gathered, calibrate=True)
    start(folder)
    assert report_of(folder)["step_time_s"]["predicted"] > 0


def test_a_killed_run_of_unlike_degrees_goes_on_with_the_same_bits(
    whole: RunFolder, tmp_path: Path
) -> None:
    folder = made(tmp_path, replace(REPLICAS, name="1f1b", sharding=0))
    with meanwhile(killer(folder, 2, lambda: steps_done(folder) >= 5)), pytest.raises(RunFailed):
        start(folder)
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("setting", "other"), [(REGULAR, REPLICAS), (REPLICAS, WIDE), (REPLICAS, STAGES)], ids=str
)
def test_a_checkpoint_goes_on_from_and_to_unlike_degrees(
    setting: Setting, other: Setting, whole: RunFolder, regular: RunFolder, tmp_path: Path
) -> None:
    saved = whole if setting is REPLICAS else regular
    folder = cut_short(saved, tmp_path, other, HALF)
    start(folder)
    theirs = [row["loss"] for row in saved.read_metrics()]
    ours = [row["loss"] for row in folder.read_metrics()]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert len(ours) == STEPS and ours[HALF] != ours[HALF - 1]


@pytest.mark.matrix
@pytest.mark.parametrize("other", [REGULAR, WIDE, STAGES, REPLICAS], ids=str)
def test_every_layout_reads_the_same_tensors_from_a_checkpoint_of_unlike_degrees(
    other: Setting, whole: RunFolder, regular: RunFolder, five: Crew, tmp_path: Path
) -> None:
    spec = load_job(whole.read_spec().job_path).model.spec
    for number, saved in enumerate((whole, regular)):
        path = Path(str(listed(saved.checkpoints)[-1].path))
        result = train(five, other, tmp_path / str(number), checkpoint=path)
        checkpoint = open_checkpoint(path)
        degrees = stored_degrees(spec, checkpoint.manifest.meta.units)
        parts = StoredParts(
            spec, degrees, lambda *at, saved=checkpoint: torch.from_numpy(saved.read_range(*at))
        )
        assert not result.losses
        for unit in unit_names(spec):
            for kind, values in zip(KINDS, result.units[unit], strict=True):
                layout = unit_layout(spec, unit)
                expected = parts.read_range(unit, WHOLE, kind, 0, layout.size).numpy()
                for parameter in layout.parameters:
                    at = slice(parameter.offset, parameter.end)
                    assert values[at].tobytes() == expected[at].tobytes()


def test_each_unit_is_stored_in_as_many_parts_as_its_ranks_need(whole: RunFolder) -> None:
    units = open_checkpoint(listed(whole.checkpoints)[-1].path).manifest.meta.units
    assert {"e.t0of2", "e.t1of2", "0.t0of2", "3.t1of2", "h.t1of2"} <= set(units)
    assert "e" not in units
    trained = trained_model(whole.path)
    job = load_job(whole.read_spec().job_path)
    begun = initial_range(job.model.spec, "0", unit_layout(job.model.spec, "0"), 0, 64, 0)
    moved = (trained.source("0")[:64] - begun).abs()
    assert 0 < float(moved.max()) < 0.05, "it is the same model, eight steps later"


def test_a_run_of_unlike_degrees_is_reported_with_its_prediction_and_its_memory(
    whole: RunFolder,
) -> None:
    report = report_of(whole)
    assert [row["program_rank"] for row in report["memory"]] == [0, 2, 2, 1, 1]
    for row in report["memory"]:
        assert 0 < row["ledger_peak_bytes"] <= row["bound_bytes"] <= row["budget_bytes"]
    assert report["step_time_s"]["predicted"] > 0
    assert {kind["kind"] for kind in report["kinds"] if kind["measured_s"] is not None} == set(
        TIMES
    )
    contents = contents_of_run(whole.path)
    assert contents.plan is not None
    facts = dict(contents.plan.facts)
    assert facts["Replica 0"] == (
        "2+2 layers, tensor degree 1, 2, 3 micro-batches of 2, activations kept on every stage"
    )
