"""How the background thread steps aside while other threads drive the sockets, and comes back.

Waiters ("guests") come and go, often every few microseconds. Waking the background thread at the
end of each short visit would cost more than the visit, and so would a thread that takes the
interpreter's lock every millisecond: the compiled form (nap.c) checks without that lock.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Final

from ratrain import compiled

LINGER_S: Final = 0.001
_STAY_S: Final = 0.05
_VISITS: Final = 0
_GUESTS: Final = 1
_STOP: Final = 2


class Aside:
    """Counts the guests. `come` and `leave` are called under the engine's lock."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._numbers = (ctypes.c_int64 * 3)()  # ended visits, guests, stop: what nap.c reads
        self._state = memoryview(self._numbers).cast("B").cast("q")
        self._resting = False
        self._come_back = threading.Event()
        library = compiled.library("transport/loop", "nap_c")
        self._nap = None if library is None else library.ratrain_nap
        self._tick = compiled.c_long(int(LINGER_S * 1e9))

    @property
    def guests(self) -> int:
        """How many threads drive, or are about to."""
        return self._state[_GUESTS]

    def come(self) -> None:
        """A guest begins to drive."""
        self._state[_GUESTS] += 1

    def leave(self) -> None:
        """A guest no longer drives."""
        self._state[_GUESTS] -= 1
        self._state[_VISITS] += 1
        if self._resting:
            self._come_back.set()

    def stop(self) -> None:
        """Let the background thread go."""
        self._state[_STOP] = 1
        self._come_back.set()

    def rest(self) -> None:
        """Return once no guest has come for LINGER_S, or after `stop`."""
        if self._nap is not None and not self._nap(self._numbers, self._tick):
            return
        seen = -1
        while not self._state[_STOP] and (rest_s := self._rest_s(seen)) > 0:
            seen = self._state[_VISITS]
            self._come_back.wait(rest_s)
            self._come_back.clear()

    def _rest_s(self, seen: int) -> float:
        """How long to rest: LINGER_S while guests come and go; while one stays, until it leaves."""
        with self._lock:
            new = seen != self._state[_VISITS]
            self._resting = self.guests > 0 and not new
            return _STAY_S if self._resting else LINGER_S * new
