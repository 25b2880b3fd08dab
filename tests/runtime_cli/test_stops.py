"""A run that is asked to stop by a signal, wherever it arrives, saves and says that it is not
finished; and every exit status is in one table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cli_runs import rank_processes, ratrain, start, steps_done, wait_until, write_job
from hosts import free_port, ranks_of

from ratrain import errors
from ratrain.checkpoint.folder import step_of
from ratrain.checkpoint.listing import latest
from ratrain.errors import EXIT_STATUSES, SAVED_NOT_FINISHED, RatrainError
from ratrain.runtime.run_folder import RunFolder

DOCS = Path(__file__).parents[2] / "docs"


def test_every_exit_status_is_in_the_table_of_the_manual_with_whether_to_start_again() -> None:
    numbers = [status.number for status in EXIT_STATUSES]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    used = {kind.exit_code for kind in kinds if issubclass(kind, RatrainError)}
    assert used < set(numbers) and numbers == sorted(set(numbers))
    page = (DOCS / "reference" / "exit-codes.md").read_text()
    rows = [f"| {each.number} | {each.meaning} | {each.again} |" for each in EXIT_STATUSES]
    assert "\n".join(rows) in page


def prepared(folder: Path) -> Path:
    job, run = write_job(folder, steps=100_000), folder / "run"
    made = ratrain(folder, "train", job, "--run", run, "--prepare-only", "--no-calibrate")
    assert made.status == 0, made.err
    return run


def launched(folder: Path, run: Path) -> list[subprocess.Popen[str]]:
    """Both ranks, as mpirun or srun start them."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        _process(
            folder,
            *("-P", "-m", "ratrain.runtime.rank", str(run)),
            **shared,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE="2",
        )
        for rank in range(2)
    ]


def torchrun(folder: Path, run: Path, *options: str) -> subprocess.Popen[str]:
    ports = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", *ports, *options)
    return _process(folder, *words, "-m", "ratrain.runtime.rank", str(run))


def _process(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **variables}
    return subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def saved_behind_the_last_step(run: Path) -> int:
    """The step that was saved, which is the last one that was done."""
    newest = latest(run / "checkpoints")
    assert newest is not None
    step = step_of(newest.path)
    assert step == len(RunFolder(run).read_metrics()) and step is not None
    return step


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 2])
def test_torchrun_that_is_preempted_leaves_a_run_that_has_saved(
    tmp_path: Path, restarts: int
) -> None:
    """As srun does it: torchrun and its ranks get the signal, and the ranks torchrun's too."""
    run = prepared(tmp_path)
    process = torchrun(tmp_path, run, "--max-restarts", str(restarts))
    wait_until(lambda: steps_done(run) > 5, process)
    for pid in (*ranks_of(run).values(), process.pid):
        os.kill(pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1  # torchrun's own, whatever its ranks end with
    assert "SIGTERM: saving after the current step" in err
    step = saved_behind_the_last_step(run)
    assert f"stopped and saved: step {step} of 100000" in err
    assert not list((run / "ranks").glob("failure-*"))
    resumed = ratrain(
        *(tmp_path, "train", tmp_path / "job.toml", "--run", run, "--resume", "--no-calibrate"),
        *("--steps", str(step + 2)),
    )
    assert resumed.status == 0, resumed.err
    assert saved_behind_the_last_step(run) == step + 2


@pytest.mark.slow
def test_a_rank_that_is_asked_stops_all_of_them_behind_one_step_with_status_75(
    tmp_path: Path,
) -> None:
    run = prepared(tmp_path)
    ranks = launched(tmp_path, run)
    wait_until(lambda: steps_done(run) > 5, ranks[0])
    ranks[1].send_signal(signal.SIGUSR1)
    for rank in ranks:
        _, err = rank.communicate(timeout=60)
        assert rank.returncode == SAVED_NOT_FINISHED, err
    assert saved_behind_the_last_step(run) > 5
    assert not (run / "stop-requested").exists()


@pytest.mark.slow
def test_a_second_request_ends_a_rank_that_cannot_save(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    ranks = launched(tmp_path, run)
    try:
        wait_until(lambda: steps_done(run) > 2, ranks[0])
        ranks[1].send_signal(signal.SIGSTOP)
        ranks[0].send_signal(signal.SIGTERM)
        time.sleep(2.5)
        assert ranks[0].poll() is None
        for _ in range(10):  # on a busy machine the first one may be heard late
            ranks[0].send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                ranks[0].wait(timeout=2.5)
                break
        assert ranks[0].poll() == -signal.SIGTERM
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whom", "number"),
    [("launcher", signal.SIGUSR2), ("rank", signal.SIGTERM), ("all", signal.SIGTERM)],
)
def test_train_ends_with_75_whoever_of_its_processes_is_asked(
    tmp_path: Path, whom: str, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    job = write_job(tmp_path, steps=100_000)
    process = start(tmp_path, "train", job, "--run", run, "--no-calibrate")
    wait_until(lambda: steps_done(run) > 5, process)
    ranks = rank_processes(run)
    for pid in {"launcher": [process.pid], "rank": ranks[:1], "all": [*ranks, process.pid]}[whom]:
        os.kill(pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == SAVED_NOT_FINISHED, err
    assert f"stopped after step {saved_behind_the_last_step(run)}; continue with --resume" in err
