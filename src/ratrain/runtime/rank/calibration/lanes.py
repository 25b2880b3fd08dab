"""What passes between two compute ops: lanes that wake each other, waits, ledger, records.

A step of the rank's own schedule is run in which no op does its work, by the same lanes under the
same quota. An op of compute reads its unit's weights, so that the caches are as cold behind it as
behind its work. What the step takes beside, over its compute ops, is what each of them costs beside
its own work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from torch import Tensor

from ratrain.devices import Device
from ratrain.program.kind import Lane
from ratrain.runtime.step.lanes import Lanes
from ratrain.runtime.step.ledger import ledgers_of
from ratrain.runtime.step.schedule import LocalOp, Schedule

MOST_S = 0.5
"""Long steps are left after this time."""


class _LongEnough(Exception):
    """Ends a step that is timed."""


def between_ops_s(
    schedule: Schedule,
    weights: Sequence[Tensor | None],
    timeout_s: float,
    device: Device,
    most_s: float = MOST_S,
) -> float:
    """Seconds from the end of a compute op to the start of the next, where it waits for nothing.
    `weights`: what the rank has of each of its units'."""
    counted = _Counted(weights, time.perf_counter() + most_s)
    # Nobody sends, so receives run ahead of every order that the proof knows; nothing is allocated.
    ledgers = ledgers_of(schedule, limited=False)
    lanes = Lanes(schedule, counted.execute, ledgers, timeout_s=timeout_s, device=device)
    lanes.record_last(1)
    began_s = time.perf_counter()
    with suppress(_LongEnough):
        lanes.run(0, lambda _, step: step < schedule.period)
    took_s = time.perf_counter() - began_s - counted.reading_s
    return took_s / counted.compute_ops if counted.compute_ops else 0.0


class _Counted:
    """Counts the ops of the compute lane, which read their units' weights; others do nothing."""

    def __init__(self, weights: Sequence[Tensor | None], until_s: float) -> None:
        self.compute_ops = 0
        self.reading_s = 0.0
        self._weights, self._until_s = weights, until_s

    def execute(self, op: LocalOp, step: int) -> None:
        del step
        if op.lane is not Lane.COMPUTE:
            return
        began_s = time.perf_counter()
        self.compute_ops += 1
        weights = self._weights[op.unit]
        if weights is not None:
            weights.sum()
        ended_s = time.perf_counter()
        self.reading_s += ended_s - began_s
        if ended_s > self._until_s:
            raise _LongEnough
