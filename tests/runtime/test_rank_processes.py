"""What a rank's process begins with, and who ended it: its launcher, or something else before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launched import made
from runs_made import Setting

from ratrain.profile.quota import processors
from ratrain.runtime.run import processes
from ratrain.runtime.run.processes import RankProcesses
from ratrain.runtime.run_folder import RunFolder

SCRIPT = """
import os, signal, time
signal.signal(signal.SIGHUP, {handler})
print(flush=True)
time.sleep(60)
"""
WAITS = SCRIPT.format(handler="signal.SIG_DFL")  # which nohup ignores
DIES_OTHERWISE = SCRIPT.format(handler="lambda *_: os.kill(os.getpid(), signal.SIGKILL)")


def test_a_rank_that_was_dying_when_its_launcher_ended_it_was_not_ended_by_the_launcher(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one that was killed, which seems to run until the kernel has freed its memory."""
    scripts = iter((WAITS, DIES_OTHERWISE))

    def start(*_: object) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([sys.executable, "-c", next(scripts)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        return child

    monkeypatch.setattr(processes, "_start", start)
    ends = RankProcesses(RunFolder(tmp_path), range(2), {}, None).end()
    assert [(end.status, end.ended_here) for end in ends] == [
        (-signal.SIGHUP, True),
        (-signal.SIGKILL, False),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("asked", [None, 3])
@pytest.mark.parametrize("confined", [True, False])
def test_threads_are_counted_where_a_rank_runs_and_not_where_it_was_prepared(
    confined: bool, asked: int | None, ranks: int, tmp_path: Path
) -> None:
    run = made(tmp_path, Setting(data=ranks), threads=asked)
    there = {min(os.sched_getaffinity(0))} if confined else os.sched_getaffinity(0)
    environment = {**os.environ, "RANK": str(ranks - 1), "WORLD_SIZE": str(ranks)}
    environment |= {"LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "7"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29499"}
    rank = subprocess.Popen(
        [sys.executable, "-P", "-m", "ratrain.runtime.rank", run.path],
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, there),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end_s = time.monotonic() + 60
        while "RATRAIN_RANK_READY" not in (own := environ_of(rank.pid)):
            assert rank.poll() is None and time.monotonic() < end_s
            time.sleep(0.02)
    finally:
        rank.kill()
        rank.wait()
    shared = max(1, (1 if confined else processors()) // ranks)
    assert own["OMP_NUM_THREADS"] == str(asked or shared)


def environ_of(pid: int) -> dict[str, str]:
    """The environment that a process began with."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
