"""A world on a simulated clock: threads of which one runs at a time, in an order that a seed draws.

Real code runs in it unchanged, as long as it waits in `sleep` alone. A short sleep is one of a loop
that looks whether something has changed: it ends when something may have.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable
from itertools import count

LOOKS_S, AT_LEAST_EVERY_S = 0.11, 0.6
"""A sleep that is no longer is one of a loop that looks; such a loop looks so often at least."""


class Killed(BaseException):
    """Whatever runs ends here: its process, or its host, was killed."""


class Deadline(Exception):
    """Something still runs that should have ended."""


def _closed() -> threading.Lock:
    """What one thread waits for, and another releases: faster than a semaphore."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Actor:
    """A thread of the simulation. `dies`: at its next turn; `raises`: that is raised there;
    `paused_by`: it has no turn until each of these reasons is over."""

    def __init__(self, world: SimWorld, work: Callable[[], None], name: str) -> None:
        self._world, self._work, self.name = world, work, name
        self.go, self.turn = _closed(), 0
        self.dies = self.over = False
        self.paused_by: set[str] = set()
        self.raises: type[BaseException] | None = None
        self.group: list[Actor] | None = None  # of its machine: what it begins belongs there too
        self.looks_from_s: float | None = None  # the next time, where it sleeps in such a loop
        self.look_s = 0.0
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        self.go.acquire()
        try:
            if not self.dies:
                self._work()
        except Killed:
            pass
        except BaseException as error:
            self._world.problems.append(error)
        self.over = True
        self._world.back.release()

    def wait(self) -> None:
        """Gives the turn back, in its own thread."""
        self._world.back.release()
        self.go.acquire()
        if self.dies:
            raise Killed
        raises, self.raises = self.raises, None
        if raises is not None:
            raise raises

    def kill(self) -> None:
        """From now on it does nothing more."""
        if not self.over:
            self.dies = True
            self.paused_by.clear()
            self._world.wake(self, 0.0)

    def pause(self, reason: str) -> None:
        if not self.dies:
            self.paused_by.add(reason)

    def resume(self, reason: str) -> None:
        if reason in self.paused_by:
            self.paused_by.remove(reason)
            self._world.wake(self, 0.0)


class SimWorld:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.back = _closed()
        self.problems: list[BaseException] = []
        self.log: list[str] = []
        self._now_s = 0.0
        self._numbers = count()
        self._queue: list[
            tuple[float, int, Callable[[], None] | None, Actor | None, int, bool]
        ] = []
        self._actors: list[Actor] = []
        self._current: Actor | None = None

    # ---- what real code calls ------------------------------------------------------------

    def now_s(self) -> float:
        return self._now_s

    def sleep(self, time_s: float) -> None:
        actor = self._current
        assert actor is not None, "only an actor sleeps"
        if time_s <= LOOKS_S:
            actor.looks_from_s, actor.look_s = self._now_s + time_s, time_s
            self.wake(actor, max(AT_LEAST_EVERY_S * (0.5 + self.random.random()), time_s))
        else:
            self.wake(actor, time_s)
        actor.wait()

    def begin(self, work: Callable[[], None], name: str) -> Actor:
        actor = Actor(self, work, name)
        if self._current is not None and self._current.group is not None:
            actor.group = self._current.group
            actor.group.append(actor)
        self._actors.append(actor)
        actor.thread.start()
        self.wake(actor, 0.0)
        return actor

    # ---- what the simulation calls -------------------------------------------------------

    @property
    def current(self) -> Actor:
        assert self._current is not None
        return self._current

    def say(self, line: str) -> None:
        self.log.append(f"{self._now_s:9.3f} {line}")

    def delay_s(self, mean_s: float) -> float:
        """Most are short, some are long."""
        factor = 20 if self.random.random() < 0.02 else 1
        return mean_s * factor * (0.2 + self.random.expovariate(1.0))

    def after(self, time_s: float, work: Callable[[], None], *, quiet: bool = False) -> None:
        """Does it then; `quiet`: nobody looks for what it changes."""
        entry = (self._now_s + time_s, next(self._numbers), work, None, 0, quiet)
        heapq.heappush(self._queue, entry)

    def wake(self, actor: Actor, time_s: float) -> None:
        """Its next turn is then, in place of any other."""
        actor.turn += 1
        entry = (self._now_s + time_s, next(self._numbers), None, actor, actor.turn, True)
        heapq.heappush(self._queue, entry)

    def run(self, until_s: float, done: Callable[[], bool]) -> None:
        """Until `done`, which must come before that moment."""
        while not done():
            if not self._queue or self._now_s > until_s:
                raise Deadline(f"not over after {self._now_s:.0f} s")
            self._step()

    def close(self) -> None:
        """Ends all actors."""
        for actor in self._actors:
            if not actor.over:
                actor.dies = True
                self._current = actor
                actor.go.release()
                self.back.acquire()
                while not actor.over:  # what it does on its way out may wait
                    actor.go.release()
                    self.back.acquire()
        for actor in self._actors:
            actor.thread.join()

    def _step(self) -> None:
        at_s, _, work, actor, turn, quiet = heapq.heappop(self._queue)
        if actor is not None and (actor.turn != turn or actor.over):
            return
        self._now_s = max(self._now_s, at_s)
        if work is not None:
            work()
        elif actor is not None:
            if actor.paused_by:
                return
            actor.looks_from_s, self._current = None, actor
            actor.go.release()
            self.back.acquire()
            self._current = None
        if not quiet:
            self._look()

    def _look(self) -> None:
        """Something has changed."""
        for actor in self._actors:
            self.nudge(actor)

    def nudge(self, actor: Actor, time_s: float = 0.0) -> None:
        """Something will have changed then, for an actor that looks whether something has."""
        if actor.looks_from_s is not None and not actor.over:
            soon_s = self._now_s + time_s + self.random.random() * actor.look_s
            at_s, actor.looks_from_s = max(actor.looks_from_s, soon_s), None
            self.wake(actor, at_s - self._now_s)
