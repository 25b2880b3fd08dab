"""Ctrl-C ends a verb, also where the KeyboardInterrupt that it raises is lost.

Python handles a signal between two instructions of the main thread, whatever that thread is doing.
In a function that C code calls, the exception can vanish with the other errors that this C code
drops, and the verb would go on to its end as if nobody had asked. So the request is remembered, and
raised again at the next progress report and when the verb returns.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_asked = threading.Event()


@contextmanager
def remember_interrupts() -> Generator[None]:
    """In the block, a Ctrl-C is remembered. Leaves alone what somebody else does about it."""
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _asked.clear()
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
        raise_if_interrupted()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def raise_if_interrupted() -> None:
    """Raises KeyboardInterrupt if somebody has pressed Ctrl-C in the block."""
    if _asked.is_set():
        raise KeyboardInterrupt


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    _asked.set()
    raise KeyboardInterrupt
