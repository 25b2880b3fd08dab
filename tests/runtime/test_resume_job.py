"""A resumed run reads its job file again: what may have changed there, and what is told of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launched import made
from runs_made import Setting, write_job

from ratrain.errors import SpecError
from ratrain.plan.file.form import file_of_plan, write_plan
from ratrain.plan.search.every_plan import case_of_job
from ratrain.plan.search.misfit import planned
from ratrain.runtime.run.prepare import RunRequest, prepare_run, write_run
from ratrain.runtime.run.resume import ResumedRun, resume_run
from ratrain.runtime.run_folder import RunFolder

PLANNED = Setting(planned=True, pipeline=4, files=("text.txt",))


def resumed(folder: RunFolder, setting: Setting) -> ResumedRun:
    """The run, resumed with the job file of a setting."""
    job = write_job(folder.path.parent, replace(setting, files=("text.txt",)))
    return resume_run(RunRequest(job, calibrate=False), folder)


def test_a_run_of_a_version_that_knew_fewer_pieces_of_models_resumes(tmp_path: Path) -> None:
    folder = made(tmp_path, PLANNED)
    case = folder.path / "case.json"
    facts = json.loads(case.read_text())
    for key in ("shared_norm", "global_layers", "experts"):
        del facts["settings"]["model"][key]
    case.write_text(json.dumps(facts))
    assert resumed(folder, PLANNED).spec == folder.read_spec()


def test_a_planned_run_resumes_with_the_plan_s_own_choices(tmp_path: Path) -> None:
    folder = made(tmp_path, PLANNED)
    begun = folder.read_spec()
    assert begun.micro_batch != PLANNED.micro_batch, "the plan has chosen as the job says"
    resumed_run = resumed(folder, PLANNED)
    assert resumed_run.spec == begun and resumed_run.changes == ()


def test_a_run_of_a_plan_file_resumes_with_the_plan_s_own_choices(tmp_path: Path) -> None:
    job = write_job(tmp_path, PLANNED)
    (tmp_path / "text.txt").write_text("some text " * 100)
    request = RunRequest(job)
    best = planned(prepare_run(request).file_job).best.plan
    (tmp_path / "plan.json").write_text(write_plan(file_of_plan(best)))
    folder = RunFolder(tmp_path / "run")
    write_run(prepare_run(replace(request, plan_path=tmp_path / "plan.json")), folder)
    assert resume_run(request, folder).spec.micro_batch == best.job.batch.micro_batch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace(PLANNED, sequences=16), r"\[batch\] sequences is 16, the run has 8"),
        (replace(PLANNED, micro_batch=2), r"\[batch\] micro_batch is 2, the run has 1"),
        (replace(PLANNED, sequence_length=8), r"\[model\] sequence_length is 8, the run has 16"),
        (replace(PLANNED, clip_norm=1.0), r"began without clip_norm"),
    ],
    ids=["sequences", "micro-batch", "sequence length", "clipping"],
)
def test_a_job_that_another_run_was_made_from_is_refused(
    change: Setting, message: str, tmp_path: Path
) -> None:
    folder = made(tmp_path, PLANNED)
    with pytest.raises(SpecError, match=message):
        resumed(folder, change)


def test_a_run_keeps_its_rule_of_what_an_overflow_skips(tmp_path: Path) -> None:
    began = replace(PLANNED, dtype="fp16", overflow="unit")
    folder = made(tmp_path, began)
    assert resumed(folder, replace(began, loss_scale=256.0)).changes
    with pytest.raises(SpecError, match=r'overflow.*began with overflow = "unit"'):
        resumed(folder, replace(began, overflow="step"))


def test_what_the_job_says_otherwise_is_told_and_what_a_run_keeps_is_told_too(
    tmp_path: Path,
) -> None:
    folder = made(tmp_path, PLANNED)
    changed = replace(PLANNED, planned=False, every=2, dtype="bf16")
    assert resumed(folder, changed).changes == (
        "[checkpoint] every is 2, was 0",
        "[layout] was added; the program stays as it is without --replan",
        "[schedule] dtype is 'bf16', was 'fp32'; the program stays as it is without --replan",
    )
    assert folder.read_spec().dtype == "fp32"


def test_a_flag_of_the_first_start_is_no_change_of_the_job(tmp_path: Path) -> None:
    job = write_job(tmp_path, replace(PLANNED, planned=False))
    folder = RunFolder(tmp_path / "run")
    write_run(prepare_run(RunRequest(job, schedule="1f1b")), folder)
    assert resume_run(RunRequest(job), folder).changes == ()


def test_a_model_without_a_name_may_have_been_moved(tmp_path: Path) -> None:
    nameless = replace(PLANNED, model=(("_name_or_path", ""),))
    made(tmp_path / "here", nameless)
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert resumed(RunFolder(tmp_path / "there" / "run"), nameless).changes == ()


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        (replace(PLANNED, sequence_length=8), "sequence_length = 16, the job has 8"),
        (replace(PLANNED, dtype="bf16"), "dtype = 'fp32', the job has 'bf16'"),
        (replace(PLANNED, model=(("num_hidden_layers", 5),)), "layers = 4, the job has 5"),
    ],
    ids=["sequence length", "dtype", "model"],
)
def test_a_plan_that_was_made_for_another_job_is_refused(
    change: Setting, setting: str, tmp_path: Path
) -> None:
    job = write_job(tmp_path / "one", PLANNED)
    best = planned(prepare_run(RunRequest(job)).file_job).best.plan
    plan = tmp_path / "plan.json"
    plan.write_text(write_plan(file_of_plan(best)))
    other = write_job(tmp_path / "other", change)
    with pytest.raises(SpecError, match=f"the plan has {setting}"):
        prepare_run(RunRequest(other, plan_path=plan))


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (("schedule.memory_budget=1GB",), "the plan has memory_budget"),
        (("cluster.devices=2",), "the plan has devices = 4, the job has 2"),
        (("schedule.collective=ring",), "the plan has collective = 'direct', the job has 'ring'"),
        (("cluster.name=lab-mixed",), "the plan has cluster"),
        (("batch.micro_batch=1",), "decides this already"),
        (("schedule.name=gpipe",), "decides this already"),
        (("schedule.sharding=0",), "decides this already"),
        (("layout.pipeline=4", "layout.data=1"), "decides this already"),
    ],
)
def test_what_a_command_line_says_against_a_plan_is_refused(
    said: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    job, plan = write_job(tmp_path, PLANNED), tmp_path / "plan.json"
    best = planned(prepare_run(RunRequest(job)).file_job).best.plan
    plan.write_text(write_plan(file_of_plan(best)))
    with pytest.raises(SpecError, match=problem):
        prepare_run(RunRequest(job, plan_path=plan, overrides=said))


def test_a_command_line_may_say_what_the_plan_says(tmp_path: Path) -> None:
    job, plan = write_job(tmp_path, PLANNED), tmp_path / "plan.json"
    ringed = prepare_run(RunRequest(job, overrides=("schedule.collective=ring",))).file_job
    plan.write_text(write_plan(file_of_plan(planned(ringed).best.plan)))
    request = RunRequest(job, plan_path=plan, overrides=("schedule.collective=ring",))
    assert prepare_run(request).case.job.collective == "ring"


@pytest.mark.parametrize("flags", [{"schedule": "gpipe"}, {"without": ("update-prefetch",)}])
def test_a_schedule_beside_a_plan_is_refused(flags: dict[str, Any], tmp_path: Path) -> None:
    job, plan = write_job(tmp_path, PLANNED), tmp_path / "plan.json"
    best = planned(prepare_run(RunRequest(job)).file_job).best.plan
    plan.write_text(write_plan(file_of_plan(best)))
    with pytest.raises(SpecError, match="decides this already"):
        prepare_run(RunRequest(job, plan_path=plan, **flags))


def test_a_plan_of_a_job_with_relative_names_runs_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path, replace(PLANNED, model=(("_name_or_path", ""),)))
    monkeypatch.chdir(tmp_path)
    job, plan = Path("job.toml"), Path("plan.json")
    given = prepare_run(RunRequest(job)).file_job
    plan.write_text(write_plan(file_of_plan(planned(given).best.plan)))
    prepared = prepare_run(RunRequest(job, plan_path=plan))
    assert prepared.case.facts() == case_of_job(given).facts() | {
        "model": prepared.case.job.model.spec.name
    }
