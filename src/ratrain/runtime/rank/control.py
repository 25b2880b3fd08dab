"""One round of control a step: losses and times to every rank, and agreement on when to stop.

The round goes beside the program, over a channel of its own, a few hundred bytes a step. No lane
begins a step before the round of the step before last has ended, so every rank stops behind the
same step, whoever asked for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch

from ratrain.program.kind import Lane
from ratrain.runtime.step.network import Network


@dataclass(frozen=True)
class RankReport:
    """What one rank says about one step. NaN: nothing to say."""

    loss_sum: float  # over the tokens of its replica; on the (first) rank with the head
    counted: float  # tokens of its replica that count in this step; there too
    counted_ahead: float  # the same of the step after the next one
    step_time_s: float
    compute_s: float
    recovery_s: float
    stages_s: float  # compute waited for other stages, its tensor group, and their tensors
    reduce_s: float
    gather_s: float
    update_s: float
    ledger_peak_bytes: float
    allocated_peak_bytes: float
    resident_bytes: float
    sent_bytes: float  # since the rank began
    gradient_norm: float
    skipped_updates: float  # of its units in the step before, where each decides by itself
    stop: float  # 1: this rank was asked to stop


Round = tuple[RankReport, ...]


class Control:
    """The rounds of one rank. `on_round` is called with every round, in order of steps."""

    def __init__(
        self,
        network: Network,
        *,
        first_step: int,
        end_step: int,
        period: int,
        on_round: Callable[[int, Round], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._network = network
        self._end, self._period = end_step, period
        self._on_round = on_round
        self._fail = fail
        self._next = first_step
        self._first = first_step
        self._changed = threading.Condition()
        self._posted: dict[int, RankReport] = {}
        self._failed = False
        self._thread = threading.Thread(target=self._rounds, name="control", daemon=True)
        self._thread.start()

    @property
    def end_step(self) -> int:
        """The step before which the run ends; it comes nearer when a rank asks to stop."""
        return self._end

    def post(self, step: int, report: RankReport) -> None:
        """This rank's report of a step; each step once, in order."""
        with self._changed:
            self._posted[step] = report
            self._changed.notify_all()

    def gate(self, lane: Lane, step: int) -> bool:
        """Whether a lane may begin a step."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failed or self._next >= step - 1 or step >= self._end
            )
            return step < self._end and not self._failed

    def is_last(self, step: int) -> bool:
        """Whether a step is the run's last; waits until that is agreed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failed or self._next >= step or step >= self._end - 1
            )
            return step == self._end - 1

    def finish(self) -> None:
        """Waits for the last round."""
        self._thread.join()

    def abandon(self) -> None:
        """Wakes all waiters when the run has failed."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def _rounds(self) -> None:
        try:
            while self._next < self._end:
                step = self._next
                with self._changed:
                    self._changed.wait_for(lambda: self._failed or self._next in self._posted)
                    if self._failed:
                        return
                    own_report = self._posted.pop(step)
                reports = self._exchange(own_report)
                self._on_round(step, reports)
                with self._changed:
                    if any(report.stop for report in reports):
                        # No lane can be further than the step after this one; a period that has
                        # begun is finished.
                        ends = -(-(step + 2) // self._period) * self._period
                        self._end = min(self._end, ends)
                    self._next = step + 1
                    self._changed.notify_all()
        except BaseException as error:
            self.abandon()
            self._fail(error)

    def _exchange(self, report: RankReport) -> Round:
        names = [field.name for field in fields(RankReport)]
        values = torch.tensor([getattr(report, name) for name in names], dtype=torch.float64)
        rows = self._network.exchange(None, values)
        return tuple(RankReport(*row.tolist()) for row in rows)
