"""What is said while no step is done: that all ranks start again and why, and that a run ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cli_runs import rank_processes, start, steps_done, wait_until, write_job
from rich.console import Console

from ratrain.cli.runs.train_view import ENDING, StepTable
from ratrain.runtime.attempts import attempts
from ratrain.runtime.rank.progress import Progress
from ratrain.runtime.run_folder import RunFolder


@pytest.mark.slow
def test_a_restart_says_why_and_from_where_and_is_a_start_of_its_own(tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = write_job(tmp_path, steps=100_000)
    process = start(tmp_path, "train", job, "--run", run, "--no-calibrate", "--restarts", "2")
    wait_until(lambda: steps_done(run) > 5, process)
    os.kill(rank_processes(run)[0], signal.SIGKILL)
    wait_until(lambda: len(attempts(RunFolder(run))) == 2, process)
    begun = attempts(RunFolder(run))
    done = steps_done(run)
    wait_until(lambda: steps_done(run) > done, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    step = begun[1].first_step
    assert step > 0 and step % 4 == 0
    assert [(each.first_step, each.restarts) for each in begun] == [(0, 2), (step, 1)]
    assert "was killed by SIGKILL" in err
    assert "the other ranks go on (start 2 of 3)" in err


def test_the_table_of_a_run_says_what_goes_on_once_the_last_step_is_done() -> None:
    table = StepTable()
    for step in (23, 24):
        table.take(Progress(step, 24, 3.0, 100.0, 0.1, 0.0, (), 0.0), stopping=False)
        console = Console(width=79)
        with console.capture() as shown:
            console.print(table.picture(79))
        assert (ENDING in shown.get()) == (step == 24)
