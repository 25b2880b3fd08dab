"""Processes beside the first that were stopped (SIGSTOP): they are named, not waited for.

One that computes for long is silent on its connections, and so is one that was stopped; the kernel
tells them apart (/proc; where there is none, nobody is named).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Thread

from ratrain.readers.processes import process_state

LOOK_S = 1.0
"""Between two looks."""
STOPPED_S = 10.0
"""A process that was found stopped for so long is not waited for."""


class Watch:
    """Looks after processes, until `end`; `stopped` is called once, when one has been stopped for
    too long, and `found` has its place then. Looks are counted, not time: while this process is
    stopped too, as by Ctrl-Z, it does not look."""

    def __init__(self, pids: Sequence[int], stopped: Callable[[], None]) -> None:
        self._looks, self._stopped = dict.fromkeys(pids, 0), stopped
        self.found: int | None = None
        self._ended = Event()
        Thread(target=self._look, name="watch", daemon=True).start()

    def end(self) -> None:
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            for place, (pid, looks) in enumerate(self._looks.items()):
                process = process_state(pid)
                self._looks[pid] = looks + 1 if process and process.is_stopped else 0
                if self._looks[pid] * LOOK_S >= STOPPED_S:
                    self.found = place
                    self._stopped()
                    return
