"""Which ops have ended how often, and the lanes that wait for them.

An op that ends wakes only lanes for which it was the last one awaited: ops end hundreds of times
a second, and every thread woken for nothing takes time from compute.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Collection

from ratrain.devices import Mark
from ratrain.program.kind import Lane
from ratrain.runtime.step.schedule import LocalOp

_KEPT = 4
"""Ends of an op that are kept: no lane is further ahead of another."""


class Completions:
    """Counts ends of ops; `stop` ends all waiting. Ops that have `ended` count once: those of
    a period's steps that are left out at the beginning."""

    def __init__(self, ops: int, ended: Collection[int] = ()) -> None:
        self._ended = [int(number in ended) for number in range(ops)]
        self._ended_s = [0.0] * ops
        self._marks = [deque[Mark](maxlen=_KEPT) for _ in range(ops)]
        self._lock = threading.Lock()
        self._bell = {lane: threading.Condition(self._lock) for lane in Lane}
        self._awaited = dict.fromkeys(Lane, 0)  # how many ops each lane waits for
        self._waiting: dict[int, list[Lane]] = defaultdict(list)  # by the op waited for
        self._stopped = False

    def wait(self, op: LocalOp, turn: int) -> bool:
        """Waits until all that the op waits for has ended in its turn-th period; False: stopped."""
        with self._lock:
            while not self._stopped:
                missing = self._missing(op, turn)
                if not missing:
                    return True
                self._awaited[op.lane] = len(missing)
                for other in missing:
                    self._waiting[other].append(op.lane)
                self._bell[op.lane].wait_for(lambda: self._stopped or not self._awaited[op.lane])
            return False

    def has_ended(self, op: LocalOp, turn: int) -> bool:
        """Whether an op has ended in its turn-th period."""
        return self._ended[op.number] > turn

    def may_begin(self, op: LocalOp, turn: int) -> bool:
        """Whether all that it waits for has ended, on other lanes than its own."""
        with self._lock:
            return not self._missing(op, turn)

    def behind(self, op: LocalOp, turn: int) -> list[Mark]:
        """The ends of the ops that one has waited for, in its turn-th period."""
        awaited = [(other, turn) for other in op.waits]
        awaited += [(other, turn - 1) for other in op.waits_before]
        with self._lock:
            # Counted from the newest: an op may be ahead. Those that were left out have none.
            back = [
                (self._marks[other], self._ended[other] - of_turn) for other, of_turn in awaited
            ]
            return [marks[-min(ago, len(marks))] for marks, ago in back if marks]

    def ended(self, op: LocalOp, at_s: float, mark: Mark) -> None:
        """One more step's end of an op."""
        with self._lock:
            self._marks[op.number].append(mark)
            self._ended[op.number] += 1
            self._ended_s[op.number] = at_s
            for lane in self._waiting.pop(op.number, ()):
                self._awaited[lane] -= 1
                if not self._awaited[lane]:
                    self._bell[lane].notify()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for bell in self._bell.values():
                bell.notify_all()

    def last_of(self, ops: tuple[int, ...]) -> int:
        """The op among these that ended last."""
        return max(ops, key=self._ended_s.__getitem__)

    def _missing(self, op: LocalOp, turn: int) -> list[int]:
        ended = self._ended
        missing = [other for other in op.waits if ended[other] <= turn]
        missing += [other for other in op.waits_before if ended[other] < turn]
        return missing
