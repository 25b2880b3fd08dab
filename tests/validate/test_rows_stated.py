"""Every row of the held-out tables is a job that a user could write, and a plan file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ratrain.describe.job import JobSpec
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.layout.plan import plan_of_layout
from ratrain.validate.predict import job_of
from ratrain.validate.rows import Run
from ratrain.validate.tables import amp, amp_layers, sailor

RUNS = [row.run for row in (*amp(), *sailor()) if isinstance(row.run, Run)]


def job_toml(run: Run, job: JobSpec) -> str:
    """The job file that states a run."""
    assert job.layout is not None
    layers = list(run.layers) if run.layers else '"equal"'
    return f"""
[model]
name = "{run.model.name}"
sequence_length = {run.sequence}
[cluster]
name = "{run.cluster}"
devices = {job.cluster.devices}
[batch]
sequences = {run.sequences}
micro_batch = {run.micro_batch}
[layout]
pipeline = {run.pipeline}
data = {run.data}
tensor = {run.tensor}
layers = {layers}
[schedule]
name = "{job.schedule.name}"
sharding = {run.sharding}
gradient_accumulation = "local"
backend = "described"
dtype = "{run.dtype}"
gradient_dtype = "{job.schedule.gradient_dtype}"
"""


@pytest.mark.slow
def test_each_row_is_the_job_of_a_job_file(tmp_path: Path) -> None:
    assert len(RUNS) == 73
    for run in RUNS:
        job = job_of(run)
        path = tmp_path / "row.toml"
        path.write_text(job_toml(run, job))
        assert replace(load_job(path), path=None) == job, run.label


@pytest.mark.parametrize("run", RUNS[::12], ids=lambda run: run.label)
def test_a_row_written_as_a_plan_file_is_the_same_program(run: Run) -> None:
    job = job_of(replace(run, sequences=8 * run.data * run.micro_batch))
    case = case_of(job)
    setup = case.program.setup
    recovery = tuple(stage.only.recovery for stage in setup.replicas[0].stages)
    layers = run.layers or (run.model.layers // run.pipeline,) * run.pipeline
    layout = replace(case.plan.layout, layers=layers)
    placement = replace(case.plan.placement, layout=layout)
    plan = plan_of_layout(
        job, placement, case.strategy, StateMode(run.sharding, False), recovery=recovery
    )
    again = plan_of_file(parse_plan(write_plan(file_of_plan(plan)), "row.json"), "row.json")
    assert Case(again).program == case.program


def test_a_cut_into_slots_counts_the_layers_of_each_stage() -> None:
    """30 slots: 2 before the 24 layers, 4 behind them."""
    assert amp_layers("") == "24"
    assert amp_layers("15") == "13-11"
    assert amp_layers("9 15 21") == "7-6-6-5"
    assert amp_layers("4 6 8 10 12 14 16 17 18 19 20 21 22 23 25") == (
        "2-2-2-2-2-2-2-1-1-1-1-1-1-1-2-1"
    )


def test_sailor_s_slots_count_the_embedding_and_the_head_as_layers() -> None:
    layers = {row.run.layers for row in sailor() if isinstance(row.run, Run)}
    assert {(24,), (11, 13), (4, 7, 7, 6), (15, 17), (2, 5, 5, 5, 4, 4, 4, 3)} <= layers
