"""Ops that the host does not wait for: the device has them, and is given the next one meanwhile.

A GPU stands idle where the host first waits for one op and then begins the next. An op whose end
no other lane awaits, and which ends no state but those that its own lane's ops made, need not be
waited for: the stream keeps the order. When it ended is known once an op after it was waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ratrain.program.kind import Waiting
from ratrain.runtime.step.schedule import LocalOp


@dataclass(frozen=True, slots=True)
class Ran:
    """One op that ran, in seconds of this process's clock. From `reached_s` its lane waited for
    it; `awaited`: for the op that it waited for longest."""

    step: int
    op: int
    reached_s: float
    start_s: float
    end_s: float
    awaited: Waiting


class Point(Protocol):
    """A point in a stream, with the device's time."""

    def elapsed_time(self, end_event: Point, /) -> float:
        """Milliseconds from here to a later point; both were reached."""
        ...


class RunAhead(Protocol):
    """Knows which ops need not be waited for."""

    def may(self, op: LocalOp, step: int) -> bool: ...

    def point(self) -> Point:
        """Here, in the stream of the thread that asks."""
        ...


class Given:
    """One lane's ops that were given and not waited for."""

    def __init__(self) -> None:
        self._ops: list[tuple[LocalOp, int, float, float, Waiting, Point]] = []

    def add(
        self, op: LocalOp, step: int, reached_s: float, start_s: float, awaited: Waiting, end: Point
    ) -> None:
        """One more; `start_s`: when the host gave it."""
        self._ops.append((op, step, reached_s, start_s, awaited, end))

    def settle(self, last: Point, last_s: float) -> Iterator[tuple[LocalOp, Ran]]:
        """When each ran, now that a later point of the stream was reached at `last_s`: from its
        predecessor's end, if it was given by then."""
        before_s = 0.0
        for op, step, reached_s, start_s, awaited, end in self._ops:
            end_s = last_s - end.elapsed_time(last) / 1e3
            start_s = min(max(start_s, before_s), end_s)
            reached_s = min(max(reached_s, before_s), start_s)
            yield op, Ran(step, op.number, reached_s, start_s, end_s, awaited)
            before_s = end_s
        self._ops.clear()
