"""The simulated clock, what happens on it, and how bad the network is."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Faults:
    """How bad the network is."""

    nics: int = 1
    delay_s: tuple[float, float] = (0.0001, 0.0001)
    """Each frame's delay is drawn from this range: a wide one reorders."""
    duplicate: float = 0.0
    """Chance that a frame arrives twice."""
    break_link: float = 0.0
    """Chance that a frame is lost and its link breaks; it comes back after `reconnect_s`."""
    stall_link: float = 0.0
    """Chance that a frame is held for 2 to 6 s, with all that follow it on its link."""


class Simulation:
    """Time and chance: one seed gives one history."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.faults = faults
        self.dice = random.Random(seed)
        self.now_s = 0.0
        self.killed: set[int] = set()  # incarnations of engines whose process has ended
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def now(self) -> float:
        """The simulated time."""
        return self.now_s

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen after `delay_s` of simulated time."""
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, event))

    def next_event(self, end_s: float) -> bool:
        """Move the clock to the next event, and let it happen; false if there is none before
        `end_s`, to which the clock then moves."""
        if not self._events or self._events[0][0] > end_s:
            self.now_s = end_s
            return False
        self.now_s, _, event = heapq.heappop(self._events)
        event()
        return True
