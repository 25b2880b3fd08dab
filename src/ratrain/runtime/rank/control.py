"""One round of control a step: losses and times to every rank, and agreement on when to stop.

The round goes beside the program, over a channel of its own: every rank reports to rank 0, which
has all reports and answers each rank with one that stands for all of them, some 300 bytes a rank
and step. No lane begins a step before the round of the step before last has ended, so every rank
stops behind the same step, whoever asked for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from math import isnan

import torch
from torch import Tensor

from ratrain.program.kind import Lane
from ratrain.runtime.step.network.network import Network


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
    expert_tokens: float  # as `StepLoad` has them
    expert_tokens_even: float
    expert_tokens_longest: float
    expert_busiest: float
    stop: float  # 1: this rank was asked to stop


Round = tuple[RankReport, ...]
"""Of a step: on rank 0 every rank's report, by rank; elsewhere one for all of them (`in_one`)."""


class Control:
    """The rounds of one rank. `on_round` is called with every round, in order of steps, and with
    the tokens that count in the step after the next one on the rank's group; `groups`: the group of
    each world rank."""

    def __init__(
        self,
        network: Network,
        *,
        first_step: int,
        end_step: int,
        period: int,
        groups: Sequence[int],
        on_round: Callable[[int, Round, int], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._network = network
        self._end, self._period = end_step, period
        self._groups = groups
        self._heard: Round = ()  # on rank 0
        self._on_round = on_round
        self._fail = fail
        self._next = first_step
        self._first = first_step
        self._changed = threading.Condition()
        self._posted: dict[int, RankReport] = {}
        self.unanswered: dict[int, RankReport] = {}
        """This rank's reports of steps that no round has ended for."""
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
            self._posted[step] = self.unanswered[step] = report
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

    def is_back(self, patience_s: float) -> bool:
        """Whether no round is under way any more, after `abandon`."""
        self._thread.join(patience_s)
        return not self._thread.is_alive()

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
                answer = self._answered(own_report)
                self._on_round(step, self._heard or (answer,), int(answer.counted_ahead))
                with self._changed:
                    if answer.stop:
                        # No lane can be further than the step after this one; a period that has
                        # begun is finished.
                        ends = -(-(step + 2) // self._period) * self._period
                        self._end = min(self._end, ends)
                    self._next = step + 1
                    del self.unanswered[step]
                    self._changed.notify_all()
        except BaseException as error:
            self.abandon()
            self._fail(error)

    def _answered(self, report: RankReport) -> RankReport:
        """The report that stands for all, for this rank."""
        values = torch.tensor(astuple(report), dtype=torch.float64)
        return RankReport(*self._network.combine(None, values, self._answers).tolist())

    def _answers(self, rows: list[Tensor]) -> list[Tensor]:
        self._heard = reports = tuple(RankReport(*row.tolist()) for row in rows)
        ahead = sums_of_groups([report.counted_ahead for report in reports], self._groups)
        together = in_one(reports)
        return [
            torch.tensor(astuple(replace(together, counted_ahead=each)), dtype=torch.float64)
            for each in ahead
        ]


def sums_of_groups(counts: Sequence[float], groups: Sequence[int]) -> list[float]:
    """For each rank the sum of what its group's ranks count; NaN: nothing."""
    sums = dict.fromkeys(groups, 0.0)
    for group, count in zip(groups, counts, strict=True):
        sums[group] += 0.0 if isnan(count) else count
    return [sums[group] for group in groups]


def in_one(reports: Round) -> RankReport:
    """One report that stands for all, in what is shown of a step: their sums, the longest step, the
    fullest rank, and the one that waits longest for its part of it."""

    def total(values: Iterable[float]) -> float:
        return sum(value for value in values if not isnan(value))

    def waits(report: RankReport) -> float:
        waited_s = report.reduce_s + report.gather_s + report.update_s
        return waited_s / (report.step_time_s or 1.0)

    waiting = max(reports, key=waits)
    fullest = max(reports, key=lambda r: r.allocated_peak_bytes or r.ledger_peak_bytes)
    step_time_s = max(report.step_time_s for report in reports)
    longer = step_time_s / (waiting.step_time_s or 1.0)
    return replace(
        waiting,
        loss_sum=total(report.loss_sum for report in reports),
        counted=total(report.counted for report in reports),
        step_time_s=step_time_s,
        reduce_s=waiting.reduce_s * longer,
        gather_s=waiting.gather_s * longer,
        update_s=waiting.update_s * longer,
        ledger_peak_bytes=fullest.ledger_peak_bytes,
        allocated_peak_bytes=fullest.allocated_peak_bytes,
        skipped_updates=total(report.skipped_updates for report in reports),
        stop=max(report.stop for report in reports),
    )
