"""Who ended a rank: its launcher, or something else before."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
