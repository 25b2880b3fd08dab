"""The single thread on which a user's callbacks run."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from ratrain.transport.config import Config

_log = logging.getLogger("ratrain.transport")


class Dispatcher:
    """Runs callbacks in order; one that raises is counted and reported, and stops nothing."""

    def __init__(self, config: Config) -> None:
        self.errors = 0
        self._config = config
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._worker: threading.Thread | None = None

    def put(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Run `callback(*args)` later; the first call starts the thread."""
        if self._worker is None:
            with self._lock:
                if self._worker is None:
                    name = f"ratnet-calls-{self._config.name}"
                    self._worker = threading.Thread(target=self._run, name=name, daemon=True)
                    self._worker.start()
        self._calls.put((callback, args))

    def close(self) -> None:
        """End the thread once the queued callbacks have run."""
        if self._worker is not None:
            self._calls.put(None)
            if threading.current_thread() is not self._worker:
                self._worker.join(5.0)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            callback, args = item
            try:
                callback(*args)
            except Exception as error:
                self.report(error)

    def report(self, error: Exception) -> None:
        """Count what a callback raised, and pass it to the user or to the log."""
        self.errors += 1
        if self._config.on_callback_error is not None:
            self._config.on_callback_error(error)
        else:
            _log.error("a callback raised", exc_info=error)
