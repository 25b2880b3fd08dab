"""Watched 64-bit cells: sampled, so steps may be skipped, the last value never."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ratrain.errors import SpecError
from ratrain.transport.engine.station import Station
from ratrain.transport.memory.regions import address_of, bytes_of


class Word:
    """A watched cell, sampled by its own thread: at each `set`, and every `period_s` if it lies in
    `memory` that others write as well (a peer, another process, a device)."""

    def __init__(
        self,
        station: Station,
        callback: Callable[[int, int], object],
        period_s: float,
        memory: object = None,
    ) -> None:
        self._station = station
        self._callback = callback
        self._period_s = period_s
        self._cell = _cell(bytearray(8) if memory is None else memory)
        self._poll_s = None if memory is None else period_s
        self._seen = self.value
        self._stopped = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ratnet-word", daemon=True)
        self._thread.start()

    @property
    def value(self) -> int:
        """The present value."""
        return self._cell[0]

    def set(self, value: int) -> None:
        """Store a value; the callback sees it or a later one."""
        self._cell[0] = value
        self._changed.set()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        self._changed.set()

    def _watch(self) -> None:
        while True:
            self._changed.wait(self._poll_s)
            self._changed.clear()
            now = self.value
            if now != self._seen:
                old, self._seen = self._seen, now
                self._station.dispatch(self._call, old, now)
            if self._stopped.wait(0.0 if self._poll_s else self._period_s):
                return

    def _call(self, old: int, new: int) -> None:
        if not self._stopped.is_set() and self._callback(old, new) is False:
            self.stop()


def _cell(memory: object) -> memoryview[int]:
    """`memory` as one signed 64-bit number in the machine's byte order."""
    view = bytes_of(memory)
    if view.nbytes != 8 or address_of(view) % 8:
        raise SpecError(
            f"a watched word of {view.nbytes} bytes at {address_of(view):#x}",
            place="Engine.watch",
            fix="give 8 bytes at an address that is a multiple of 8, e.g. one numpy int64",
        )
    if view.readonly:
        raise SpecError("a watched word in read-only memory", place="Engine.watch")
    return view.cast("q")
