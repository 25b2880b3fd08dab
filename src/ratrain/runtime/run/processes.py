"""The ranks as child processes of this one: started, watched, ended.

Nothing listens for it: how a rank ended is its process's exit status, a stop is asked for by a
file in the run's folder, and ranks end by themselves when their launcher does (`rank/__main__.py`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ratrain.errors import RunFailed
from ratrain.readers.files import unwritable
from ratrain.runtime.environment import ADDRESS, FOLLOWED, LAUNCHER, LISTENER, PORT
from ratrain.runtime.run_folder import RunFolder

GRACE_S = 5.0
"""Between asking a rank to end and making it."""

_NOT_INHERITED = ("TORCHELASTIC_", PORT, ADDRESS)
"""What is for ranks of torchrun, which this process itself may have been started by, or beside."""


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended. `status`: its exit status, or a signal's number, negative; `ended_here`: by
    a signal of this launcher; `stood_still`: it was stopped (SIGSTOP, a debugger) when that was
    done."""

    rank: int
    status: int
    ended_here: bool = False
    stood_still: bool = False


class RankProcesses:
    """One attempt's ranks. The caller must call `end` or `kill`, however the attempt goes.
    `listener`: a listening socket for rank 0, which inherits it."""

    def __init__(
        self,
        folder: RunFolder,
        world_size: int,
        environment: dict[str, str],
        listener: socket.socket | None,
    ) -> None:
        self._children: list[subprocess.Popen[bytes]] = []
        self._sent: set[tuple[int, int]] = set()  # (rank, signal)
        self._stood_still: set[int] = set()
        try:
            for rank in range(world_size):
                variables = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                handles = (listener.fileno(),) if listener and rank == 0 else ()
                if handles:
                    variables[LISTENER] = str(handles[0])
                self._children.append(_start(folder, rank, variables, handles))
        except BaseException as error:
            self.kill()
            if not isinstance(error, OSError):
                raise
            raise RunFailed(
                f"rank {len(self._children)} could not be started: {error.strerror or error}",
                place=str(folder.path),
                fix="check what `ulimit -a` allows: processes, open files, memory",
            ) from error

    @property
    def running(self) -> bool:
        """Whether any rank still runs."""
        return any(child.poll() is None for child in self._children)

    @property
    def failed(self) -> bool:
        """Whether any rank has failed."""
        return any(child.poll() for child in self._children)

    def end(self) -> list[RankEnd]:
        """Ends all ranks that still run, and returns how each rank ended, by rank."""
        self._signal(signal.SIGTERM)
        end_s = time.monotonic() + GRACE_S
        while self.running and time.monotonic() < end_s:
            time.sleep(0.01)
        return self.kill()

    def kill(self) -> list[RankEnd]:
        """The same at once."""
        self._signal(signal.SIGKILL)
        return [self._end_of(rank, child.wait()) for rank, child in enumerate(self._children)]

    def _end_of(self, rank: int, status: int) -> RankEnd:
        return RankEnd(rank, status, (rank, -status) in self._sent, rank in self._stood_still)

    def _signal(self, number: signal.Signals) -> None:
        """To every rank that runs; one that is stopped hears SIGKILL alone. One that something else
        has killed may seem to run while its memory is freed, when others have lost it already; it
        still ends with the other signal."""
        for rank, child in enumerate(self._children):
            if child.poll() is not None:
                continue
            stopped = _is_stopped(child.pid)
            if stopped:
                self._stood_still.add(rank)
            fitting = signal.SIGKILL if stopped else number
            self._sent.add((rank, fitting))
            child.send_signal(fitting)


def base_environment(world_size: int, address: str, port: int) -> dict[str, str]:
    """What all ranks inherit: this process's environment, and what every launcher passes to
    them."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
    return {
        "PYTHONUNBUFFERED": "1",  # a rank that is killed leaves what it printed
        **inherited,
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        LAUNCHER: str(os.getpid()),
        FOLLOWED: "1",
    }


def _start(
    folder: RunFolder, rank: int, environment: dict[str, str], handles: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Ctrl-C in a terminal is for the launcher alone."""
    with ExitStack() as stack:
        try:
            log: IO[bytes] = stack.enter_context(folder.log(rank).open("ab", buffering=0))
            log.write(time.strftime("--- started %Y-%m-%d %H:%M:%S\n").encode())
        except OSError as error:
            raise unwritable(folder.log(rank), error) from error
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "ratrain.runtime.rank", str(folder.path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=handles,
        )


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped (Linux; elsewhere no)."""
    with suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state in "Tt"
    return False
