"""Lanes: one thread and one stream a lane, ops in order, waiting for each other only where states
say so. An op is over when the device has done its work: the states that it frees end then.

The compute lane runs on the calling thread. A lane that fails stops all others: they see it at
their next wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from ratrain.devices import CPU, Device, Stream
from ratrain.errors import OF_ANOTHER
from ratrain.program.kind import Kind, Lane, Waiting
from ratrain.runtime.step.ahead import Given, Ran, RunAhead
from ratrain.runtime.step.completions import Completions
from ratrain.runtime.step.held import HeldStates
from ratrain.runtime.step.ledger import Ledgers, Stopped
from ratrain.runtime.step.schedule import LocalOp, Schedule

Execute = Callable[[LocalOp, int], None]
"""Does an op's work in a step."""
Meet = Callable[[LocalOp], None]
"""Waits until an op's partner on another rank is there, before memory is taken for its message."""
Gate = Callable[[Lane, int], bool]
"""Called by each lane before each step; False ends the lane."""


@dataclass
class StepTimes:
    """Where the compute lane's time went since it was last asked."""

    compute_s: float = 0.0
    recovery_s: float = 0.0
    waited_s: dict[Waiting, float] = field(default_factory=lambda: dict.fromkeys(Waiting, 0.0))


class Lanes:
    """Runs a schedule step after step."""

    def __init__(
        self,
        schedule: Schedule,
        execute: Execute,
        ledger: Ledgers,
        *,
        timeout_s: float,
        held: HeldStates | None = None,
        device: Device = CPU,
        meet: Meet | None = None,
        stop: Callable[[], None] | None = None,
        ahead: RunAhead | None = None,
    ) -> None:
        self._schedule, self._state_name = schedule, schedule.program.table.states.name
        self._execute = execute
        self._meet = meet
        self._stop = stop  # wakes lanes that wait in an op for another lane
        self._ledger = ledger
        self._held = HeldStates() if held is None else held
        self._device = device
        self._timeout_s = timeout_s
        self._completions = Completions(len(schedule.ops))
        self._failing = threading.Lock()
        self._failure: BaseException | None = None
        self._failed: Callable[[], None] | None = None
        # A rank that computes nothing has its compute lane too: it goes from step to step there.
        lanes = (Lane.COMPUTE, *schedule.lanes)
        self._records: dict[Lane, list[Ran]] = {lane: [] for lane in lanes}
        self._run_ahead, self._given = ahead, Given()  # of the compute lane
        self._kept_steps = 0
        self._times = StepTimes()
        self._threads: list[threading.Thread] = []
        self._step_of: dict[Lane, int] = {}

    def run(
        self,
        first_step: int,
        gate: Gate,
        *,
        ahead: int = 0,
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Runs steps from `first_step` until the gate says no; raises what any lane raised. Step n
        is the program's step `n + ahead` of a period; where that is not its first, the steps
        before it are left out. `failed` is called when a lane fails: it must wake lanes that wait
        in the gate. May be called again, when the steps before have ended."""
        self._first_step, self._ahead = first_step, ahead
        self._failed = failed
        left_out = self._schedule.before(first_step + ahead)
        self._completions = Completions(len(self._schedule.ops), left_out)
        if self._failure is not None:
            raise self._failure
        others = [lane for lane in self._schedule.lanes if lane is not Lane.COMPUTE]
        self._threads = [
            threading.Thread(target=self._lane, args=(lane, gate), name=lane.word, daemon=True)
            for lane in others
        ]
        for thread in self._threads:
            thread.start()
        self._lane(Lane.COMPUTE, gate)
        for thread in self._threads:
            while thread.is_alive() and self._failure is None:
                thread.join(0.2)
        if self._failure is not None:
            raise self._failure
        self._device.finish()

    def fail(self, error: BaseException) -> None:
        """Stops all lanes with an error found elsewhere. What other ranks did because of this one's
        error may be found before it: the error counts."""
        with self._failing:
            if self._failure is None or (
                isinstance(self._failure, OF_ANOTHER) and not isinstance(error, OF_ANOTHER)
            ):
                self._failure = error
        self._completions.stop()
        self._ledger.stop()
        if self._stop is not None:
            self._stop()
        if self._failed is not None:
            self._failed()

    @property
    def failure(self) -> BaseException | None:
        """The first of all lanes that is this rank's own, else the first."""
        return self._failure

    def are_back(self, patience_s: float) -> bool:
        """Waits until no lane is at work any more, once `run` has raised; whether that is so."""
        end_s = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def finish(self, kinds: Collection[Kind], *, passing: Kind | None = None) -> None:
        """Does what is left of a lane's step, once all lanes are back: its next ops, as long as
        they are of these kinds, which need no other rank, and all that they wait for has ended;
        behind a Commit that is there, since those that still read states were called back.
        `passing`: a kind whose ops count as ended."""
        for lane, step in self._step_of.items():
            turn, committed = self._turn(step), False
            for op in self._schedule.of_step(lane, step + self._ahead):
                if self._completions.has_ended(op, turn) or op.kind is passing:
                    committed |= op.kind.is_commit
                    continue
                if not (op.kind in kinds or op.kind.is_barrier):
                    break
                if not (committed or self._completions.may_begin(op, turn)):
                    break
                with self._device.stream(lane.word) as stream:
                    self._execute(op, step)
                    mark = stream.finish()
                self._completions.ended(op, time.perf_counter(), mark)

    def stands_before(self, kind: Kind) -> bool:
        """Whether an op of a kind is the next of its lane, and all that it waits for has ended."""
        for lane, step in self._step_of.items():
            turn = self._turn(step)
            ops = self._schedule.of_step(lane, step + self._ahead)
            left = next((op for op in ops if not self._completions.has_ended(op, turn)), None)
            if left is not None and left.kind is kind:
                return self._completions.may_begin(left, turn)
        return False

    def record_last(self, steps: int) -> None:
        """Ops of each lane's last steps are kept on record, whenever the run ends."""
        self._kept_steps = steps

    def records(self) -> list[Ran]:
        """What was recorded, lane by lane."""
        return [ran for records in self._records.values() for ran in records]

    def _lane(self, lane: Lane, gate: Gate) -> None:
        step = self._first_step
        try:
            with self._device.stream(lane.word) as stream:
                while gate(lane, step):
                    self._step_of[lane] = step
                    oldest = step - self._kept_steps
                    self._records[lane] = [ran for ran in self._records[lane] if ran.step > oldest]
                    for op in self._schedule.of_step(lane, step + self._ahead):
                        self._one(op, step, stream)
                    step += 1
        except Stopped:
            return
        except BaseException as error:
            self.fail(error)

    def _one(self, op: LocalOp, step: int, stream: Stream) -> None:
        reached_s = time.perf_counter()
        turn = self._turn(step)
        if not self._completions.wait(op, turn):
            raise Stopped
        stream.begin(op, step, partial(self._completions.behind, op, turn), self._state_name)
        if self._meet is not None:
            self._meet(op)
        self._ledger.take(op.births, op.word, self._timeout_s)
        self._held.let_go(op.renews)
        start_s = time.perf_counter()
        self._execute(op, step)
        if self._run_ahead is not None and self._run_ahead.may(op, step):
            end = self._run_ahead.point()
            self._given.add(op, step, reached_s, start_s, self._awaited(op), end)
            self._let_go(op)
            return
        last = self._run_ahead.point() if self._run_ahead and op.lane is Lane.COMPUTE else None
        mark = stream.finish()
        end_s = time.perf_counter()
        self._let_go(op)
        if last is not None:
            for given, ran in self._given.settle(last, end_s):
                self._keep(given, ran)
                reached_s, start_s = max(reached_s, ran.end_s), max(start_s, ran.end_s)
        self._keep(op, Ran(step, op.number, reached_s, start_s, end_s, self._awaited(op)))
        self._completions.ended(op, end_s, mark)

    def _turn(self, step: int) -> int:
        """Which period since the beginning a step is in."""
        period = self._schedule.period
        return (step + self._ahead) // period - (self._first_step + self._ahead) // period

    def _let_go(self, op: LocalOp) -> None:
        """Nobody uses any more what an op frees or replaces."""
        self._held.let_go(state.key for state in op.deaths)
        self._held.let_replaced_go()
        self._ledger.give(op.deaths)

    def _keep(self, op: LocalOp, ran: Ran) -> None:
        """Counts the time of an op that is over."""
        if op.lane is Lane.COMPUTE:
            self._count(op, ran.start_s - ran.reached_s, ran.end_s - ran.start_s, ran.awaited)
        if self._kept_steps:
            self._records[op.lane].append(ran)

    def _count(self, op: LocalOp, waited_s: float, took_s: float, awaited: Waiting) -> None:
        if op.kind is Kind.R:
            self._times.recovery_s += took_s
        else:
            self._times.compute_s += took_s
        self._times.waited_s[awaited] += waited_s

    def take_times(self) -> StepTimes:
        """The compute lane's times since the last call; to be called on that lane."""
        taken, self._times = self._times, StepTimes()
        return taken

    def _awaited(self, op: LocalOp) -> Waiting:
        """For what a wait is, by the op that ended last among those waited for."""
        others = (*op.waits, *op.waits_before)
        last = self._schedule.ops[self._completions.last_of(others)] if others else op
        return last.kind.waiting
