"""Looking again before going to sleep: for a bounded time, and only while that pays.

A sleeping thread is woken 20 to 50 us late on a virtual machine, and its peer pays for the wake
as well. A waiter therefore asks epoll again and again for at most `limit_s`, yielding its core
between the looks. Looks that were in vain are counted: after a few, on a loaded or idle host, it
sleeps at once and tries a look only now and then.
"""

from __future__ import annotations

import os
import select
import time
from typing import Final

_TRUST: Final = 8  # vain looks in a row after which it sleeps at once
_RETRY: Final = 64  # sleeps after which one look is tried again


class Spin:
    """A bounded look before each sleep of one waiter."""

    def __init__(self, epoll: select.epoll, limit_s: float) -> None:
        self._poll = epoll.poll
        self._limit_s = limit_s
        self._trust = _TRUST if limit_s > 0 else 0
        self._slept = 0

    def poll(self, wait_s: float) -> list[tuple[int, int]]:
        """The events of the epoll, awaited for `wait_s` at most."""
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
