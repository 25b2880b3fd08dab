"""Who moves the bytes: any thread that waits, and a background thread when none does.

A waiting thread takes the driver's seat and serves the sockets itself, so that an arrival costs
no hand-off between threads. The background thread steps aside for it, and comes back 1 ms after
the last waiter has left (`aside.py`). Both block in epoll; a waiter polls for a bounded time before
it sleeps (`spin.py`), the background thread never does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable

from ratrain.transport.loop.aside import Aside
from ratrain.transport.loop.spin import Spin

_log = logging.getLogger("ratrain.transport")


class Work:
    """What a driver serves besides its sockets. All calls come under the driver's lock."""

    def prepare(self) -> float:
        """Send what is owed; the seconds until `tick` must be called."""
        raise NotImplementedError

    def tick(self) -> bool:
        """Serve what is due by now; true if something changed that a thread may wait for."""
        raise NotImplementedError

    def break_down(self, error: Exception) -> None:
        """`error` was raised where none should be: fail everything that waits."""
        raise NotImplementedError


class Driver:
    """Turns socket events into calls of their handlers."""

    def __init__(self, lock: threading.RLock, spin_s: float = 0.0) -> None:
        self.lock = lock
        self._epoll = select.epoll()
        self._spin = Spin(self._epoll, spin_s)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._handlers: dict[int, Callable[[int], None]] = {}
        self.before_sleep: dict[int, Callable[[], float]] = {}
        self._seat = threading.Lock()
        self._changed = threading.Condition(lock)
        self._aside = Aside(lock)
        self._guest_drives = False
        self._followers = 0
        self._later: list[Callable[[], None]] = []
        self._running = False
        self._work: Work | None = None
        self._worker: threading.Thread | None = None

    def start(self, work: Work, name: str) -> None:
        """Start the background thread."""
        self._work = work
        self._running = True
        self._worker = threading.Thread(target=self._background, name=f"ratnet-{name}", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """Stop the background thread and let all waiters go."""
        with self.lock:
            self._running = False
            self._changed.notify_all()
        self._aside.stop()
        self.wake()
        if self._worker is not None and self._worker is not threading.current_thread():
            self._worker.join()
        with self._seat:
            self._epoll.close()
            os.close(self._wake_fd)

    def add(self, fd: int, handler: Callable[[int], None]) -> None:
        """Call `handler(events)` under the lock whenever `fd` is ready."""
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def change(self, fd: int, events: int) -> None:
        """Watch `fd` for other events."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Stop watching `fd`."""
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(fd)

    def later(self, call: Callable[[], None]) -> None:
        """Run `call` at the end of the present or next turn (called under the lock)."""
        self._later.append(call)
        self.wake()

    def wake(self) -> None:
        """Make the thread that blocks in epoll return from it."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Serve until `ready()`, which is called under the lock; false after `timeout_s`."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self.lock:
            if ready():
                return True
            while self._guest_drives and self._running:
                left_s = 1.0 if end_s is None else min(1.0, end_s - time.monotonic())
                if left_s <= 0:
                    return False
                self._followers += 1
                self._changed.wait(left_s)
                self._followers -= 1
                if ready():
                    return True
            if not self._running:
                return ready()
            self._guest_drives = True
            self._aside.come()
        try:
            return self._drive(ready, end_s)
        finally:
            with self.lock:
                self._guest_drives = False
                self._aside.leave()
                if self._followers:
                    self._changed.notify_all()

    def _drive(self, ready: Callable[[], bool], end_s: float | None) -> bool:
        if not self._seat.acquire(blocking=False):
            self.wake()
            self._seat.acquire()
        try:
            while self._running:
                left_s = None if end_s is None else end_s - time.monotonic()
                if self._turn(left_s, ready):
                    return True
                if left_s is not None and left_s <= 0:
                    return False
            return False
        finally:
            self._seat.release()

    def _turn(self, limit_s: float | None, ready: Callable[[], bool] | None = None) -> bool:
        """Serve what is there, or what comes first within `limit_s`; true if `ready()`. An
        unexpected exception from what it serves ends the engine, with an error for all who wait."""
        with self.lock:
            if ready is not None and ready():
                return True
            try:
                wait_s = self._prepare()
            except Exception as error:
                self._break(error)
                return False
        if limit_s is not None:
            wait_s = max(0.0, min(wait_s, limit_s))
        poll = self._epoll.poll if ready is None else self._spin.poll
        events = poll(wait_s)
        with self.lock:
            try:
                self._serve(events)
            except Exception as error:
                self._break(error)
            return ready is not None and ready()

    def _prepare(self) -> float:
        """Send what is owed; the seconds that may be slept."""
        assert self._work is not None
        due_s = self._work.prepare()
        for serve in self.before_sleep.values():
            due_s = min(due_s, serve())
        return due_s

    def _serve(self, events: list[tuple[int, int]]) -> None:
        for fd, what in events:
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(what)
            elif fd == self._wake_fd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
        while self._later:
            self._later.pop(0)()
        assert self._work is not None
        if self._work.tick() and self._followers:
            self._changed.notify_all()

    def _break(self, error: Exception) -> None:
        """The state can no longer be trusted: fail all transfers and waits (under the lock)."""
        self._running = False
        _log.error("the transport's loop failed", exc_info=error)
        assert self._work is not None
        self._work.break_down(error)
        self._changed.notify_all()
        self._aside.stop()
        self.wake()

    def _background(self) -> None:
        while self._running:
            with self._seat:
                while self._running and not self._aside.guests:
                    self._turn(None)
            if self._running:
                self._aside.rest()
