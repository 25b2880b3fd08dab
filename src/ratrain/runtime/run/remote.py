"""All hosts' ranks started from one of them, over ssh or another command that runs words there.

What a host prints appears here behind its name. A request to stop goes to every host on the
standard input of its command, since ssh passes no signals; where the connection breaks, the ranks
beyond it save and stop. A host says every second that it is alive. One that is silent for
`SILENT_S` is taken for lost: its power, cable or kernel may have failed, which other ranks'
connections show much later.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from ratrain.errors import RunFailed
from ratrain.runtime.rank.stop import passed_on
from ratrain.runtime.run.host_ranks import BEAT, END, STOP

_LOOK_EVERY_S = 0.1
_LAST_WORDS_S = 20.0
"""How long other hosts may go on after one has failed; their ranks find out and end by
themselves."""
_GRACE_S = 10.0
SILENT_S = 10.0
LOST = 255
"""The status of a host that is lost, as ssh has it."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class HostCommand:
    """What to run on a host. `target`: what `rsh` calls it."""

    host: str
    target: str
    words: Sequence[str]


@dataclass(frozen=True)
class Everywhere:
    """How the commands of hosts ended: each one's exit status; whether they were asked to stop."""

    statuses: dict[str, int]
    asked: bool


def run_everywhere(commands: Sequence[HostCommand], rsh: Sequence[str], tell: Tell) -> Everywhere:
    """Runs each host's command to its end."""
    shells: list[_Shell] = []
    asked = threading.Event()

    def stop() -> None:
        asked.set()
        for shell in shells:
            shell.order(STOP)

    try:
        for command in commands:
            shells.append(_Shell(command, rsh, tell))
        with passed_on(stop):
            _wait(shells)
    finally:
        for shell in shells:
            shell.end()
    hosts = (command.host for command in commands)
    statuses = dict(zip(hosts, (shell.status for shell in shells), strict=True))
    return Everywhere(statuses, asked.is_set())


class _Shell:
    """One host's command, seen from here."""

    def __init__(self, command: HostCommand, rsh: Sequence[str], tell: Tell) -> None:
        self.host, self._tell = command.host, tell
        self._heard_s: float | None = None  # it has begun, and was alive then
        self.lost = False
        words = [*rsh, command.target, shlex.join(command.words)]
        try:
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for us alone
            )
        except OSError as error:
            raise RunFailed(
                f"{words[0]!r} cannot be run: {error.strerror or error}",
                place=f"host {command.host}",
                fix="install it, or name another with --rsh",
            ) from error
        assert self._child.stdout is not None
        self._reader = threading.Thread(
            target=self._pass_on, args=(self._child.stdout,), daemon=True
        )
        self._reader.start()

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    @property
    def failed(self) -> bool:
        return self.lost or bool(self._child.poll())

    @property
    def status(self) -> int:
        status = self._child.wait()
        return LOST if self.lost else status

    def look(self) -> None:
        """Gives it up where it has been silent for too long."""
        if self._heard_s is None or self.lost or not self.running:
            return
        silent_s = time.monotonic() - self._heard_s
        if silent_s > SILENT_S:
            self.lost = True
            self._tell(f"{self.host}: silent for {silent_s:.0f} s, taken for lost")
            self._child.kill()

    def order(self, word: str) -> None:
        assert self._child.stdin is not None
        with suppress(OSError):  # it has ended
            self._child.stdin.write(word + "\n")
            self._child.stdin.flush()

    def end(self) -> None:
        """Ends it, where it still runs, and shows its last lines."""
        if self.running:
            self.order(END)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_GRACE_S)
            self._child.kill()
        self._child.wait()
        if not self.lost:
            self._reader.join(_GRACE_S)

    def _pass_on(self, stream: IO[str]) -> None:
        for line in stream:
            if BEAT in line:
                self._heard_s = time.monotonic()
            said = line.replace(BEAT, "").rstrip()
            if said or BEAT not in line:
                self._tell(f"{self.host}: {said}")


def _wait(shells: Sequence[_Shell]) -> None:
    """For all to end; not for long once one has failed."""
    failed_s: float | None = None
    while any(shell.running for shell in shells):
        for shell in shells:
            shell.look()
        if any(shell.lost for shell in shells):
            return  # others wait for it, in connections that are whole
        if failed_s is None and any(shell.failed for shell in shells):
            failed_s = time.monotonic()
        if failed_s is not None and time.monotonic() - failed_s > _LAST_WORDS_S:
            return
        time.sleep(_LOOK_EVERY_S)
