"""Runs that are started from Python: interrupted, resumed, broken off, failed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cli_runs import rank_processes, write_job

import ratrain
from ratrain.errors import RunFailed

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ratrain.Job:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return ratrain.load_job(write_job(tmp_path, steps=40))


def test_an_interrupt_saves_and_returns_the_run_which_resumes_with_the_same_losses(
    job: ratrain.Job,
) -> None:
    def interrupt(step: ratrain.StepProgress) -> None:
        if step.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = ratrain.train(job, calibrate=False, on_step=interrupt)
    assert stopped.folder == Path("runs/job-ratrain")
    assert not stopped.finished and 2 <= stopped.steps < 40
    resumed = ratrain.train(job, resume=stopped, calibrate=False)
    assert resumed.finished and resumed.losses[: stopped.steps] == stopped.losses
    whole = ratrain.train(job.using("baseline-1f1b"), calibrate=False)
    assert whole.losses == resumed.losses


def test_what_on_step_raises_ends_the_ranks_and_reaches_the_caller(job: ratrain.Job) -> None:
    def fail(step: ratrain.StepProgress) -> None:
        raise KeyError(step.step)

    with pytest.raises(KeyError):
        ratrain.train(job, run="broken", calibrate=False, on_step=fail)
    assert not rank_processes(Path("broken"))


def test_a_rank_that_is_killed_raises_and_its_run_can_be_read(job: ratrain.Job) -> None:
    def kill(step: ratrain.StepProgress) -> None:
        if step.step == 6:
            os.kill(max(rank_processes(Path("killed"))), signal.SIGKILL)

    with pytest.raises(RunFailed, match="rank"):
        ratrain.train(job, run="killed", plan=ratrain.plan(job)[0], calibrate=False, on_step=kill)
    assert not rank_processes(Path("killed"))
    assert ratrain.load_run("killed").steps >= 6


def test_a_plan_decides_layout_and_schedule_of_a_job_that_overrides_its_file(
    job: ratrain.Job,
) -> None:
    changed = ratrain.load_job(
        job.spec.path or "", "schedule.name=baseline-1f1b", "layout.pipeline=1", "layout.data=2"
    )
    plan = ratrain.plan(changed.unplanned())[0]
    run = ratrain.train(changed, plan=plan, steps=2, calibrate=False)
    assert run.folder == Path("runs/job-baseline-1f1b") and run.steps == 2
