"""Ops that a device has before those in front of them are over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from made import small

from ratrain.devices import CPU, Device
from ratrain.program.kind import Lane
from ratrain.program.strategies import STRATEGIES
from ratrain.runtime.step.captured import need_no_wait, share_waited_for
from ratrain.runtime.step.lanes import Lanes
from ratrain.runtime.step.ledger import ledgers_of
from ratrain.runtime.step.schedule import LocalOp, Schedule, schedule_of

WORK_S = 0.001


@dataclass(frozen=True)
class Stamp:
    """A point in a stream, with the time at which the stream reached it."""

    reached: Future[float]

    def elapsed_time(self, end: Any) -> float:
        return (end.reached.result() - self.reached.result()) * 1e3


@dataclass
class Late:
    """A stream that works behind the host, and a device that has it for the compute lane."""

    ahead: frozenset[int]
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    ended_s: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    most_given: int = 0

    def execute(self, op: LocalOp, step: int) -> None:
        if op.lane is Lane.COMPUTE:
            self.worker.submit(self._work, op.number, step)
            self.most_given = max(self.most_given, self.worker._work_queue.qsize())

    def _work(self, op: int, step: int) -> None:
        time.sleep(WORK_S)
        self.ended_s[step, op] = time.perf_counter()

    def may(self, op: LocalOp, step: int) -> bool:
        return step > 0 and op.number in self.ahead

    def point(self) -> Stamp:
        return Stamp(self.worker.submit(time.perf_counter))

    def begin(self, *_: object) -> None: ...

    def finish(self) -> Any:
        self.worker.submit(lambda: None).result()
        return CPU.mark()

    @contextmanager
    def stream(self, lane: str) -> Generator[Any]:
        if lane == Lane.COMPUTE.word:
            yield self
            return
        with CPU.stream(lane) as stream:
            yield stream


def run_ahead(schedule: Schedule, steps: int) -> tuple[Late, Lanes]:
    late = Late(need_no_wait(schedule))
    lanes = Lanes(
        schedule,
        late.execute,
        ledgers_of(schedule, limited=False),
        timeout_s=30,
        device=cast(Device, late),
        ahead=late,
    )
    lanes.record_last(steps)
    lanes.run(0, lambda _, step: step < steps)
    return late, lanes


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "megatron-interleaved"])
def test_ops_are_given_ahead_and_recorded_as_the_device_did_them(name: str) -> None:
    schedule = schedule_of(small(name), 0)
    late, lanes = run_ahead(schedule, 3)
    rows = [ran for ran in lanes.records() if schedule.ops[ran.op].lane is Lane.COMPUTE]
    assert [(ran.step, ran.op) for ran in rows] == [
        (step, op.number) for step in range(3) for op in schedule.of_step(Lane.COMPUTE, step)
    ]
    for ran, after in itertools.pairwise(rows):
        assert ran.reached_s <= ran.start_s <= ran.end_s <= after.start_s
    for ran in rows:
        assert ran.end_s >= late.ended_s[ran.step, ran.op] - 1e-4
    assert late.most_given or not late.ahead


def test_what_another_lane_awaits_is_waited_for() -> None:
    schedule = schedule_of(small("ratrain"), 0)
    ahead = need_no_wait(schedule)
    awaited = {other for op in schedule.ops for other in (*op.waits, *op.waits_before)}
    assert ahead and not ahead & awaited
    assert 0 < share_waited_for(schedule) < 1
