"""Polling before going to sleep: for a bounded time, and only while it pays off.

A sleeping thread wakes up 20 to 50 us late on a virtual machine, and waking it costs its peer time
as well. A waiter therefore polls epoll for at most `limit_s`, yielding its core between the polls.
After a few periods of polling in vain, on a loaded or idle host, it sleeps at once and tries
polling only now and then.
"""

from __future__ import annotations

import os
import select
import time
from typing import Final

_TRUST: Final = 8  # vain periods in a row after which it sleeps at once
_RETRY: Final = 64  # sleeps after which polling is tried again


class Spin:
    """Bounded polling before each sleep of a waiter."""

    def __init__(self, epoll: select.epoll, limit_s: float) -> None:
        self._poll = epoll.poll
        self._limit_s = limit_s
        self._trust = _TRUST if limit_s > 0 else 0
        self._slept = 0

    def poll(self, wait_s: float) -> list[tuple[int, int]]:
        """The events of the epoll, after at most `wait_s`."""
        poll = self._poll
        events = poll(0)
        if events or wait_s <= 0:
            return events
        if not self._trust:
            self._slept += 1
            if self._slept < _RETRY or self._limit_s <= 0:
                return poll(wait_s)
            self._slept = 0
        now, rest = time.monotonic, os.sched_yield
        end_s = now() + min(self._limit_s, wait_s)
        while now() < end_s:
            rest()
            events = poll(0)
            if events:
                self._trust = _TRUST
                return events
        self._trust = max(0, self._trust - 1)
        return poll(wait_s)
