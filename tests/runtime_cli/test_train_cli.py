"""`ratrain train` as a user meets it: real ranks, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cli_runs import (
    Ran,
    rank_processes,
    ratrain,
    start,
    steps_done,
    wait_until,
    write_job,
)
from hosts import free_port

from ratrain.checkpoint.listing import latest
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.runtime.run_folder import RunFolder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("train")
    write_job(made)
    return made


@pytest.fixture(scope="module")
def finished(folder: Path) -> Ran:
    """The job's run with --json, in runs/job-ratrain."""
    return ratrain(folder, "train", "job.toml", "--json")


# ---- what a run shows -------------------------------------------------------------------


def test_a_run_reports_its_prediction_beside_what_was_measured(finished: Ran) -> None:
    assert finished.status == 0, finished.err
    report = finished.body
    assert report["steps"]["done"] == report["steps"]["end"] == 8
    times = report["step_time_s"]
    assert times["fastest"] <= times["measured"] <= times["slowest"]
    assert times["predicted"] > 0 and times["ratio"] == times["measured"] / times["predicted"]
    kinds = {kind["kind"]: kind for kind in report["kinds"]}
    assert kinds["compute"]["measured_s"] > 0 and kinds["compute"]["predicted_s"] > 0
    assert sum(k["predicted_s"] for k in report["kinds"]) == pytest.approx(times["predicted"])
    assert report["loss"]["last"] < report["loss"]["first"]


def test_a_run_stays_inside_what_was_proved(finished: Ran) -> None:
    for rank in finished.body["memory"]:
        assert 0 < rank["ledger_peak_bytes"] <= rank["bound_bytes"] <= rank["budget_bytes"]
        assert sum(rank["bound_items"].values()) == rank["bound_bytes"]


def test_the_run_folder_says_what_ran_where(folder: Path, finished: Ran) -> None:
    run = folder / "runs" / "job-ratrain"
    report = json.loads((run / "report.json").read_text())
    assert report == {key: value for key, value in finished.body.items() if key in report}
    assert (folder / finished.body["page"]).read_text().startswith("<!doctype html>")
    (attempt,) = (run / "attempts.jsonl").read_text().splitlines()
    assert {"ratrain", "python", "torch"} <= set(json.loads(attempt)["versions"])
    case = json.loads((run / "case.json").read_text())
    assert case["facts"]["layers_per_stage"] == [1, 1]
    assert json.loads((run / "measured.json").read_text())["source"] == "runtime"


@pytest.mark.usefixtures("finished")
def test_the_same_job_again_gets_a_folder_of_its_own(folder: Path) -> None:
    ran = ratrain(folder, "train", "job.toml", "--steps", "3", "--no-calibrate")
    assert ran.status == 0, ran.err
    assert (folder / "runs" / "job-ratrain-2" / "report.json").exists()
    assert "No prediction" in ran.out
    assert any(line.startswith("step 1/3  loss ") for line in ran.out.splitlines())
    assert all(len(line) <= 80 for line in (ran.out + ran.err).splitlines())


@pytest.mark.usefixtures("finished")
def test_tensorboard_shows_the_losses_of_the_metrics(folder: Path) -> None:
    assert_curves_are_the_metrics(folder / "runs" / "job-ratrain")


def assert_curves_are_the_metrics(run: Path) -> None:
    """The losses, each once, in one file of events."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert len(list((run / "tensorboard").iterdir())) == 1
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    shown = [(event.step, event.value) for event in events.Scalars("loss")]
    rows = RunFolder(run).read_metrics()
    assert rows
    assert shown == [(row["step"] + 1, pytest.approx(row["loss"], rel=1e-6)) for row in rows]


# ---- going on ---------------------------------------------------------------------------


@pytest.mark.usefixtures("finished")
def test_a_finished_run_says_so(folder: Path) -> None:
    ran = ratrain(folder, "train", "job.toml", "--run", "runs/job-ratrain", "--resume")
    assert ran.status == 0
    assert "finished at step 8" in ran.err


def test_a_run_that_is_stopped_goes_on_with_the_very_same_bits(tmp_path: Path) -> None:
    write_job(tmp_path, steps=14)
    whole = ratrain(tmp_path, "train", "job.toml", "--run", "whole", "--no-calibrate")
    begun = ratrain(
        tmp_path, "train", "job.toml", "--run", "parts", "--steps", "5", "--no-calibrate"
    )
    rest = ratrain(
        tmp_path,
        *("train", "job.toml", "--run", "parts", "--resume", "--steps", "14", "--no-calibrate"),
    )
    assert whole.status == begun.status == rest.status == 0, rest.err
    assert "resuming after step 5" in rest.err
    compared = ratrain(tmp_path, "compare", "whole", "parts", "--json")
    assert compared.status == 0 and compared.body["losses"]["steps"] == 14


def test_ctrl_c_saves_behind_the_step_and_resume_goes_on_there(tmp_path: Path) -> None:
    write_job(tmp_path, steps=100_000)
    run = tmp_path / "run"
    process = start(tmp_path, "train", "job.toml", "--run", "run", "--no-calibrate")
    wait_until(lambda: steps_done(run) > 3, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    saved = latest(run / "checkpoints")
    assert saved is not None
    step = open_checkpoint(saved.path).manifest.meta.step
    assert f"stopped after step {step}; continue with --resume" in err
    rows = RunFolder(run).read_metrics()
    assert [row["step"] for row in rows] == list(range(step))
    again = ratrain(
        tmp_path,
        *("train", "job.toml", "--run", "run", "--resume", "--steps", str(step + 3)),
        "--no-calibrate",
    )
    assert again.status == 0, again.err
    assert [row["step"] for row in RunFolder(run).read_metrics()] == list(range(step + 3))


def test_a_second_ctrl_c_ends_at_once_with_no_rank_left(tmp_path: Path) -> None:
    write_job(tmp_path, steps=100_000)
    run = tmp_path / "run"
    process = start(tmp_path, "train", "job.toml", "--run", run, "--no-calibrate")
    wait_until(lambda: steps_done(run) > 1, process)
    for pid in rank_processes(run):
        os.kill(pid, signal.SIGSTOP)  # so that they cannot stop by themselves in between
    process.send_signal(signal.SIGINT)
    wait_until((run / "stop-requested").exists, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert rank_processes(run) == []


def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    write_job(tmp_path, steps=100_000)
    run = tmp_path / "run"
    process = start(tmp_path, "train", "job.toml", "--run", run, "--no-calibrate")
    wait_until(lambda: steps_done(run) > 1, process)
    ranks = rank_processes(run)
    assert len(ranks) == 2
    process.kill()
    process.communicate(timeout=60)
    for pid in ranks:
        _wait_gone(pid)


def _wait_gone(pid: int) -> None:
    """Returns when the process is gone, or waits to be collected."""
    path = Path(f"/proc/{pid}/stat")
    with suppress(FileNotFoundError, ProcessLookupError):
        while path.read_text().rsplit(")", 1)[1].split()[0] != "Z":
            time.sleep(0.05)


# ---- several machines -------------------------------------------------------------------


def test_the_printed_torchrun_command_runs_what_was_prepared(tmp_path: Path) -> None:
    write_job(tmp_path, steps=3)
    prepared = ratrain(tmp_path, "train", "job.toml", "--run", "run", "--prepare-only", "--json")
    assert prepared.status == 0, prepared.err
    body = prepared.body
    command = body["command"].replace("\\\n", " ")
    for name, value in {"M": "1", "P": str(body["world_size"]), "N": "0"}.items():
        command = command.replace(f" {name} ", f" {value} ")
    words = command.replace("HOST", "127.0.0.1").replace("29500", str(free_port())).split()
    safe_path, value = words[0].split("=")
    torchrun = [sys.executable, "-m", "torch.distributed.run", *words[2:]]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), safe_path: value}
    done = subprocess.run(torchrun, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = ratrain(tmp_path, "train", "job.toml", "--run", "run", "--resume", "--json")
    assert report.status == 0 and report.body["steps"]["done"] == 3
    assert_curves_are_the_metrics(tmp_path / "run")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root")
@pytest.mark.usefixtures("finished")
def test_a_run_in_a_lab_says_so_and_has_the_same_bits(folder: Path) -> None:
    ran = ratrain(folder, "train", "job.toml", "--run", "lab", "--lab", "--json")
    assert ran.status == 0, ran.err
    assert ran.body["lab"] is True
    assert ratrain(folder, "compare", "lab", "runs/job-ratrain").status == 0
