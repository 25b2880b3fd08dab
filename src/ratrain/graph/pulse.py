"""Signs of life of the processes beside the first: one that was stopped is named, not waited for.

A process that computes for long is silent on its connections, and so is one that was stopped. What
tells them apart is a thread that only says that it runs; nobody stopped both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from ctypes import c_double
from multiprocessing.context import SpawnContext
from threading import Event, Thread
from typing import Any

BEAT_S = 1.0
"""Between two signs of life."""
SILENT_S = 10.0
"""Without one a process is said to be stopped. A busy machine must not be taken for that."""


class Pulse:
    """A process's signs of life, in memory that it shares with the first."""

    def __init__(self, context: SpawnContext) -> None:
        self._last_s: Any = context.RawValue(c_double, 0.0)

    def begin(self) -> None:
        """This process gives signs of life from now on."""
        self._last_s.value = time.monotonic()
        Thread(target=self._beat, name="pulse", daemon=True).start()

    def silent_s(self, since_s: float) -> float:
        """For how long it gave none, of the time since then; 0: it has not begun."""
        last_s = self._last_s.value
        return time.monotonic() - max(last_s, since_s) if last_s else 0.0

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            self._last_s.value = time.monotonic()


class Watch:
    """Looks after several, until `end`; `stopped` is called once, when one is silent for too long,
    and `silent` has its number then. Time in which this process itself was stopped counts for
    none."""

    def __init__(self, pulses: dict[int, Pulse], stopped: Callable[[], None]) -> None:
        self._pulses, self._stopped = pulses, stopped
        self.silent: int | None = None
        self._ended = Event()
        self._thread = Thread(target=self._look, name="watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()

    def _look(self) -> None:
        since_s = looked_s = time.monotonic()
        while not self._ended.wait(BEAT_S):
            now_s = time.monotonic()
            if now_s - looked_s > SILENT_S / 2:
                since_s = now_s
            looked_s = now_s
            for number, pulse in self._pulses.items():
                if pulse.silent_s(since_s) > SILENT_S:
                    self.silent = number
                    self._stopped()
                    return
