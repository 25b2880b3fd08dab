"""Lanes of a device whose work is put off: operators wait in their lane's queue and run in a random
order, as far as somebody waits for them.

Who waits for a mark has seen all that led to it. Each lane keeps for every other lane how much of
its work it has seen: a vector clock (Fidge 1988; Mattern 1989).
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ratrain.errors import MissingOrder

DEFAULT = "default"
"""The lane of the thread that made the device, while it is in no other."""


def no_op() -> str:
    """What a lane is doing ahead of its first op."""
    return "no op"


@dataclass(eq=False)
class Lane:
    """A queue of operators. `seen`: of each lane how many operators are over, or of the lane itself
    given, before the next one of this lane begins."""

    name: str
    of: object  # the device's `Queue`
    queue: deque[tuple[Callable[[], object], Callable[[], str]]] = field(
        default_factory=deque[tuple[Callable[[], object], Callable[[], str]]]
    )
    given: int = 0
    ran: int = 0
    seen: dict[str, int] = field(default_factory=dict[str, int])
    doing: Callable[[], str] = no_op

    def learn(self, seen: dict[str, int]) -> None:
        """What another lane has seen is seen here from now on."""
        for name, count in seen.items():
            if self.seen.get(name, 0) < count:
                self.seen[name] = count

    def give(self, work: Callable[[], object]) -> int:
        """Puts work behind all that is here; its number."""
        self.queue.append((work, self.doing))
        self.given += 1
        self.seen[self.name] = self.given
        return self.given


class Mark:
    """A point in a lane: so many operators are over."""

    __slots__ = ("_queue", "at", "lane", "seen")

    def __init__(self, queue: Queue, lane: Lane) -> None:
        self._queue, self.lane, self.at = queue, lane, lane.given
        self.seen = dict(lane.seen)

    def wait(self) -> None:
        """Lets the device work until the lane has come to it."""
        self._queue.wait(self)


class Queue:
    """All lanes of a device; `seed` says in which order they run."""

    def __init__(self, seed: str) -> None:
        self.lock = threading.RLock()
        self.lanes: dict[str, Lane] = {}
        self.missing: list[MissingOrder] = []
        self._chance = random.Random(seed)
        self._of_thread = threading.local()
        self._home_thread, self._home = threading.get_ident(), self.lane(DEFAULT)

    def lane(self, name: str) -> Lane:
        with self.lock:
            return self.lanes.setdefault(name, Lane(name, self))

    @property
    def here(self) -> Lane:
        """The lane of this thread. Threads without one are autograd's own: they work for the thread
        that made the device, as CUDA's backward runs on the stream of its forward."""
        return getattr(self._of_thread, "lane", self._home)

    def enter(self, lane: Lane) -> Lane:
        """This thread gives its work to a lane from now on; returns the lane before."""
        before = self.here
        self._of_thread.lane = lane
        if threading.get_ident() == self._home_thread:
            self._home = lane
        return before

    def give(self, work: Callable[[], object] | None) -> int:
        """Puts work into this thread's lane; its number there."""
        lane = self.here
        with self.lock:
            return lane.give(work or no_op)

    def mark(self, lane: Lane | None = None) -> Mark:
        with self.lock:
            return Mark(self, lane or self.here)

    def wait(self, mark: Mark) -> None:
        """Runs operators of any lanes until a mark is reached; what it has seen is seen here."""
        while mark.lane.ran < mark.at:
            self._turn()
        with self.lock:
            self.here.learn(mark.seen)

    def raise_missing(self) -> None:
        """Raises the first order that was found missing."""
        if self.missing:
            raise self.missing[0]

    def dawdle(self) -> None:
        """Sometimes lets other lanes go first."""
        if self._chance.random() < 0.2:
            time.sleep(self._chance.random() / 1000)

    def _turn(self) -> None:
        with self.lock:
            ready = [lane for lane in self.lanes.values() if lane.queue]
            if not ready:
                return
            lane = self._chance.choice(ready)
            work, words = lane.queue.popleft()
            try:
                work()
            except Exception as error:
                error.add_note(f"in {words()}, on lane {lane.name}")
                raise
            finally:
                lane.ran += 1
