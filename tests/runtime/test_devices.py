"""A plan's devices are those that ranks run on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from runs_made import write_text

from ratrain.errors import SpecError
from ratrain.plan.file.form import file_of_plan, write_plan
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.search.layouts import search_layouts
from ratrain.runtime.run.prepare import PreparedRun, RunRequest, prepare_run, write_run
from ratrain.runtime.run_folder import RunFolder

JOB = """
[model]
name = "tiny-llama"
sequence_length = 128

[cluster]
name = "lab-mixed"
devices = 4

[batch]
sequences = 32

[schedule]
name = "ratrain"
skeleton = "1f1b"
dtype = "fp32"

[train]
steps = 2

[data]
files = ["text.txt"]
"""
STAGES = ("2-3", "0-1")
"""The devices of each stage of two replicas: the slow ones first."""


def prepared(folder: Path) -> PreparedRun:
    """A run of a plan whose stages are on devices that are not in the cluster's order."""
    write_text(folder / "text.txt")
    (folder / "job.toml").write_text(JOB)
    job = load_job(folder / "job.toml")
    tried = search_layouts(replace(job, layout=None)).tried
    candidate = next(
        plan.plan for plan in tried if (plan.plan.layout.pipeline, plan.plan.layout.data) == (2, 2)
    )
    body = json.loads(write_plan(file_of_plan(candidate)))
    stages = [stage for replica in body["replicas"] for stage in replica["stages"]]
    assert len(stages) == 2, "two replicas that behave alike"
    for stage, devices in zip(stages, STAGES, strict=True):
        stage["devices"] = devices
    (folder / "plan.json").write_text(json.dumps(body))
    return prepare_run(RunRequest(folder / "job.toml", plan_path=folder / "plan.json"))


def test_ranks_have_the_devices_of_their_plan(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    assert run.spec.devices == (2, 3, 0, 1)
    assert "0 on 2 (slow-rank), 1 on 3 (slow-rank), 2 on 0 (fast-rank)" in " ".join(run.seating())
    seats = run.spec.seats.all()
    budgets = [run.program.setup.budget_of(seat.program_rank) for seat in seats]
    assert budgets == [1_000_000_000, 1_000_000_000, 2_000_000_000, 2_000_000_000]
    folder = RunFolder(tmp_path / "run")
    write_run(run, folder)
    assert folder.read_spec().device_numbers == (2, 3, 0, 1)


def test_a_run_whose_ranks_share_a_device_is_damaged(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    write_run(prepared(tmp_path), folder)
    marker = folder.path / "run.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "devices": [0, 0, 1, 2]}))
    with pytest.raises(SpecError, match="4 ranks are on 3 different devices"):
        folder.read_spec()
