"""Ctrl-C ends a verb, also where the KeyboardInterrupt that it raises is lost.

Python handles a signal between two instructions of the main thread, whatever that thread is doing.
In an object's `__del__`, and in a function that C code calls, the exception is dropped like every
other, at best with a traceback, and the verb would continue to its end as if nobody had asked. So
the request is remembered, and raised again at the next progress report and when the verb returns.
"""

from __future__ import annotations

import signal
import sys
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
    shown, sys.unraisablehook = sys.unraisablehook, _drop_interrupts
    try:
        yield
        raise_if_interrupted()
    finally:
        sys.unraisablehook = shown
        signal.signal(signal.SIGINT, signal.default_int_handler)


def raise_if_interrupted() -> None:
    """Raises KeyboardInterrupt if somebody has pressed Ctrl-C in the block."""
    if _asked.is_set():
        raise KeyboardInterrupt


def _drop_interrupts(dropped: sys.UnraisableHookArgs) -> None:
    """Of what Python cannot raise, shows all but interrupts, which are remembered."""
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    _asked.set()
    raise KeyboardInterrupt
