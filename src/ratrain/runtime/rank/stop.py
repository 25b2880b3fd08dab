"""A rank that gets SIGTERM, SIGINT, SIGUSR1 or SIGUSR2 is asked to stop: by a batch system that
preempts it or whose time limit is near, by torchrun or mpirun, by a person.

Nothing is saved in a handler. A rank passes the request on in its next round of control, all ranks
stop behind the same step, save there, and end with status 75. Before the first step the request is
remembered; a second one ends the process at once, as all did before there was something to save.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

from ratrain.errors import SAVED_NOT_FINISHED
from ratrain.readers.numbers import is_number
from ratrain.runtime.environment import FOLLOWED, LAUNCHER

REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
END_AT_ONCE = signal.SIGHUP
"""What our own launcher ends its ranks with when one of them has failed."""
ONE_REQUEST_S = 2.0
"""Signals within this time are one request: a batch system's reaches a rank directly, and once more
through the torchrun above it."""


class StopRequests:
    """Those of one process, from `listen` on."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._prints: Callable[[], bool] = lambda: False

    def listen(self) -> None:
        """To be called by the main thread."""
        for number in REQUESTS:
            signal.signal(number, self._take)
        if LAUNCHER in os.environ:  # `nohup ratrain train` ignores it, and so would its ranks
            signal.signal(END_AT_ONCE, signal.SIG_DFL)

    def tell(self, prints: Callable[[], bool]) -> None:
        """A request is told of on stderr where `prints()`."""
        self._prints = prints

    @property
    def asked(self) -> bool:
        return self._first_s is not None

    def end_at_once(self) -> None:
        """From now on a request ends the process: the run has failed."""
        self._set(signal.SIG_DFL)

    def ignore(self) -> None:
        """From now on there is nothing left to stop."""
        self._set(signal.SIG_IGN)

    def _set(self, action: signal.Handlers) -> None:
        for number in REQUESTS:
            signal.signal(number, action)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
            if self._prints():  # os.write: a handler may interrupt a print
                name = signal.Signals(number).name
                with suppress(OSError):
                    os.write(2, f"{name}: saving after the current step\n".encode())
        elif now_s - self._first_s > ONE_REQUEST_S:
            self.end_at_once()
            os.kill(os.getpid(), number)


@contextmanager
def passed_on(ask: Callable[[], None]) -> Generator[None]:
    """In the block, of a launcher, the first request calls `ask`, and a second one raises
    KeyboardInterrupt; those that are ignored stay so, but SIGINT. Only the main thread can hear
    any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def take(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        ask()

    heard = [
        number
        for number in REQUESTS
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
    ]
    before = [signal.signal(number, take) for number in heard]
    try:
        yield
    finally:
        for number, handler in zip(heard, before, strict=True):
            signal.signal(number, handler)


def status_when_stopped(environ: Mapping[str, str]) -> int:
    """The exit status of a rank that was stopped and has saved. Our own launcher knows without; and
    torchrun would take any but 0 for a failure, and start all ranks again where it may."""
    if environ.get(FOLLOWED):
        return 0
    started, limit = (
        environ.get(f"TORCHELASTIC_{name}", "") for name in ("RESTART_COUNT", "MAX_RESTARTS")
    )
    restarts = is_number(started) and is_number(limit) and int(started) < int(limit)
    return 0 if restarts else SAVED_NOT_FINISHED
