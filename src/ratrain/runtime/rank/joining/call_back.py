"""How a rank is called back while it waits for others, whatever it waits in."""

from __future__ import annotations

import threading
from collections.abc import Callable


class CallBack:
    """Of one episode. Whoever waits for others says beforehand what ends that (`ends`)."""

    def __init__(self) -> None:
        self._changed = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self.error: BaseException | None = None

    def call(self, error: BaseException) -> None:
        """Ends all that waits, and will, with an error found elsewhere; from any thread."""
        with self._changed:
            self.error = self.error or error
            ends = self._ends[::-1]  # what began last knows best
        for end in ends:
            end()

    def ends(self, end: Callable[[], None]) -> None:
        with self._changed:
            self._ends.append(end)
            called = self.error is not None
        if called:
            end()

    def require(self) -> None:
        """Raises where the rank was called."""
        if self.error is not None:
            raise self.error
