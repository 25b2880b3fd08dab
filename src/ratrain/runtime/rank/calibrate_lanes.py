"""What passes between two compute ops: lanes that wake each other, waits, ledger, records.

A step of the rank's own schedule is run in which no op does anything, by the same lanes under the
same quota. What it takes, over its compute ops, is what each of them costs beside its own work.
"""

from __future__ import annotations

import time
from contextlib import suppress

from ratrain.program.kind import Lane
from ratrain.runtime.step.lanes import Lanes
from ratrain.runtime.step.ledger import ledgers_of
from ratrain.runtime.step.schedule import LocalOp, Schedule

MOST_S = 0.5
"""Long steps are left after this time."""


class _LongEnough(Exception):
    """Ends a step that is timed."""


def between_ops_s(schedule: Schedule, timeout_s: float, most_s: float = MOST_S) -> float:
    """Seconds from the end of a compute op to the start of the next, where it waits for nothing."""
    counted = _Counted(time.perf_counter() + most_s)
    # Nobody sends, so receives run ahead of every order that the proof knows; nothing is allocated.
    ledgers = ledgers_of(schedule, limited=False)
    lanes = Lanes(schedule, counted.execute, ledgers, timeout_s=timeout_s)
    lanes.record_last(1)
    began_s = time.perf_counter()
    with suppress(_LongEnough):
        lanes.run(0, lambda _, step: step < schedule.period)
    return (time.perf_counter() - began_s) / counted.compute_ops if counted.compute_ops else 0.0


class _Counted:
    """Does nothing in each op, and counts those of the compute lane."""

    def __init__(self, until_s: float) -> None:
        self.compute_ops = 0
        self._until_s = until_s

    def execute(self, op: LocalOp, step: int) -> None:
        del step
        if op.lane is Lane.COMPUTE:
            self.compute_ops += 1
            if time.perf_counter() > self._until_s:
                raise _LongEnough
