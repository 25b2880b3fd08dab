"""Time, and threads beside the one that asks: what the protocol of launchers needs of the world
besides processes and lines to them. Tests have another one, on a simulated clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class World(Protocol):
    def now_s(self) -> float:
        """On a clock that only goes forward."""
        ...

    def sleep(self, time_s: float) -> None: ...

    def begin(self, work: Callable[[], None], name: str) -> object:
        """Does it beside what else goes on; nobody waits for its end."""
        ...


class ThisWorld:
    """The real one."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, time_s: float) -> None:
        time.sleep(time_s)

    def begin(self, work: Callable[[], None], name: str) -> None:
        threading.Thread(target=work, name=name, daemon=True).start()


HERE = ThisWorld()
