"""Real runs: a folder, its processes, what they left, and ways to disturb them."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from runs_made import Setting, write_job, write_plan, write_text

from ratrain.checkpoint.comparison import compare
from ratrain.checkpoint.listing import listed
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.runtime.ownership import claim_run
from ratrain.runtime.run.launch import launch
from ratrain.runtime.run.prepare import RunRequest, prepare_run, write_run
from ratrain.runtime.run_folder import RunFolder

GRACE_S = 15.0
"""How long a run may take to end once something has gone wrong."""


def made(
    folder: Path,
    setting: Setting,
    *,
    calibrate: bool = False,
    run: str = "run",
    threads: int | None = 1,
) -> RunFolder:
    """A run's folder, ready to launch; its job and text lie beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not setting.files:
        write_text(folder / "text.txt")
        setting = replace(setting, files=("text.txt",))
    job = write_job(folder, setting)
    request = RunRequest(
        job,
        threads=threads,
        calibrate=calibrate,
        steps=setting.end_step,
        plan_path=write_plan(folder, setting),
    )
    prepared = prepare_run(request)
    run_folder = RunFolder(folder / run)
    write_run(prepared, run_folder)
    return run_folder


def start(folder: RunFolder, *, restarts: int = 0) -> None:
    """Launches a run, or resumes it, and waits for its end."""
    with claim_run(folder.path, "a test") as claim:
        launch(
            folder,
            folder.read_spec(),
            claim=claim,
            lab=None,
            restarts=restarts,
            tick=lambda: None,
        )


def cut_short(whole: RunFolder, to: Path, setting: Setting, upto: int) -> RunFolder:
    """A run of `setting` that has the whole run's checkpoints up to a step, and its lines."""
    folder = made(to, setting)
    for checkpoint in listed(whole.checkpoints):
        if checkpoint.step <= upto:
            shutil.copytree(str(checkpoint.path), folder.checkpoints / checkpoint.path.name)
    lines = whole.metrics.read_text().splitlines(keepends=True)
    folder.metrics.write_text("".join(lines[:upto]))
    return folder


def loss_bits(folder: RunFolder) -> list[str]:
    """The losses of all steps."""
    rows = folder.read_metrics()
    assert [row["step"] for row in rows] == list(range(len(rows)))
    return [row["loss_bits"] for row in rows]


def saved_steps(folder: RunFolder) -> list[int]:
    """Steps of the whole checkpoints; none may be damaged."""
    checkpoints = listed(folder.checkpoints)
    assert all(checkpoint.manifest is not None for checkpoint in checkpoints), [
        checkpoint.problem for checkpoint in checkpoints
    ]
    return [checkpoint.step for checkpoint in checkpoints]


def assert_same_end(first: RunFolder, second: RunFolder) -> None:
    """The newest checkpoints hold the same bits."""
    a, b = (open_checkpoint(listed(folder.checkpoints)[-1].path) for folder in (first, second))
    assert a.manifest.meta.step == b.manifest.meta.step
    assert a.manifest.meta.state == b.manifest.meta.state
    assert all(difference.identical for difference in compare(a, b))


# ---- processes ------------------------------------------------------------------------------


def ranks_of(folder: RunFolder) -> dict[int, int]:
    """World rank -> process id, of the processes of a run that live now."""
    ranks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            if "ratrain.runtime.rank" not in words or str(folder.path) not in words:
                continue
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            pairs = (entry / "environ").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if state not in "ZX" and "RANK" in environment:  # torchrun has the same words
            ranks[int(environment["RANK"])] = int(entry.name)
    return ranks


def wait_until(condition: Callable[[], bool], timeout_s: float = 240.0) -> None:
    """Polls finely, so that a moment is not missed."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "what was waited for did not happen"
        time.sleep(0.002)


def steps_done(folder: RunFolder) -> int:
    """How many steps have been told of."""
    return len(folder.metrics.read_bytes().splitlines()) if folder.metrics.exists() else 0


@contextmanager
def meanwhile(disturb: Callable[[], None], done: list[float] | None = None) -> Generator[None]:
    """Runs `disturb` beside the block; when it was done is added to `done`."""
    problems: list[BaseException] = []

    def work() -> None:
        try:
            disturb()
            if done is not None:
                done.append(time.monotonic())
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(300)
    assert not problems, problems[0]


def killer(
    folder: RunFolder, rank: int, when: Callable[[], bool], number: int = signal.SIGKILL
) -> Callable[[], None]:
    """Sends a signal to a rank at a moment."""

    def work() -> None:
        wait_until(when)
        wait_until(lambda: rank in ranks_of(folder))
        os.kill(ranks_of(folder)[rank], number)

    return work
