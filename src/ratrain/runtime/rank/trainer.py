"""One rank's whole run: its states, its lanes, and the loop over steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ratrain.describe.job import JobSpec
from ratrain.models.units import Unit, unit_of
from ratrain.program.actions import Lane
from ratrain.program.program import Program
from ratrain.runtime.rank.control import Control, RankReport, Round
from ratrain.runtime.run_folder import RunSpec
from ratrain.runtime.seats import Seat
from ratrain.runtime.step.allocator import Allocator
from ratrain.runtime.step.batches import ReplicaBatches
from ratrain.runtime.step.clipping import Clipping
from ratrain.runtime.step.lanes import Lanes, Ran
from ratrain.runtime.step.ledger import Ledger
from ratrain.runtime.step.network import Network
from ratrain.runtime.step.ops import RankOps, Saver, Sizes
from ratrain.runtime.step.optimizer import LossScale
from ratrain.runtime.step.process import resident_bytes
from ratrain.runtime.step.schedule import Schedule, schedule_of
from ratrain.runtime.step.states import DTYPES, RankStates, Source, rank_states

NAN = float("nan")
_NEIGHBOURS = (Lane.RECV_F, Lane.RECV_B, Lane.SEND_F, Lane.SEND_B, Lane.TENSOR)


@dataclass(frozen=True)
class Begin:
    """Where a run begins: at step 0, or behind a checkpoint."""

    step: int
    source: Source
    loss_scale: float
    good_steps: int = 0
    skipped_steps: int = 0  # of those before: their gradients were not finite


class RankRun:
    """A rank that is ready to run. `heard` is called with every control round."""

    def __init__(
        self,
        job: JobSpec,
        program: Program,
        spec: RunSpec,
        seat: Seat,
        network: Network,
        batches: ReplicaBatches,
        begin: Begin,
        *,
        device: torch.device,
        heard: Callable[[int, Round], None],
        stop_asked: Callable[[], bool],
        allocator: Allocator,
    ) -> None:
        self._job, self._spec, self._seat = job, spec, seat
        self._stop_asked = stop_asked
        self._allocator = allocator
        self._network = network
        self._begin = begin
        self._step_began_s = time.perf_counter()
        setup = program.setup
        self._budget_bytes = setup.budget_bytes
        self.sizes = self._sizes()
        self.schedule: Schedule = schedule_of(program, seat.program_rank)
        persistent = self.schedule.persistent
        self.ledger = Ledger(persistent, setup.budget_bytes, setup.tier)
        self.states: RankStates = rank_states(
            self.schedule,
            spec.seats,
            seat,
            self._unit,
            begin.source,
            DTYPES[spec.dtype],
            device,
        )
        timeout_s = job.train.timeout_s
        scaled = spec.dtype == "fp16"
        self.ops = RankOps(
            self.schedule,
            self.states,
            network,
            batches,
            job.train,
            self.sizes,
            Clipping(
                job.train.clip_norm,
                LossScale(begin.loss_scale, begin.good_steps) if scaled else None,
                begin.skipped_steps,
            ),
        )
        self.lanes = Lanes(
            self.schedule, self._execute, self.ledger, timeout_s=timeout_s, meet=self.ops.meet
        )
        self._heard = heard
        self.control: Control | None = None

    def save_with(self, saver: Saver) -> None:
        """Save ops go to this saver."""
        self.ops.saver = saver

    def is_last(self, step: int) -> bool:
        """Whether a step is the run's last; waits until that is agreed."""
        assert self.control is not None
        return self.control.is_last(step)

    def run(self) -> None:
        """All steps, from the beginning to the end that control decides."""
        control = Control(
            self._network,
            first_step=self._begin.step,
            end_step=self._spec.end_step,
            heard=self._heard,
            fail=self.lanes.fail,
        )
        self.control = control
        self._allocator.reset_peak()
        if self._budget_bytes is not None:
            self._allocator.limit(self._budget_bytes)
        self._step_began_s = time.perf_counter()
        self.lanes.record_last(self._spec.record_steps)
        try:
            self.lanes.run(self._begin.step, self._gate, failed=control.abandon)
            control.finish()
        finally:
            control.abandon()

    def records(self) -> dict[str, Any]:
        """Every op of the last steps, as words with times."""
        rows: list[Ran] = self.lanes.records()
        ops = self.schedule.ops
        return {
            "rank": self._seat.world_rank,
            "program_rank": self._seat.program_rank,
            "clock_s": time.time() - time.perf_counter(),
            "rows": [
                [
                    ran.step,
                    ops[ran.op].lane.word,
                    ops[ran.op].word,
                    ran.reached_s,
                    ran.start_s,
                    ran.end_s,
                ]
                for ran in rows
            ],
        }

    def memory(self) -> dict[str, Any]:
        """The ledger's peak, itemised, and what the allocator saw."""
        return {
            "rank": self._seat.world_rank,
            **asdict(self.ledger.peak),
            "ledger_waits": self.ledger.waits,
            "allocated_peak_bytes": self._allocator.peak_bytes if self._allocator.counts else None,
            "resident_bytes": resident_bytes(),
        }

    def _execute(self, op: Any, step: int) -> None:
        self.ops.execute(op, step)

    def _gate(self, lane: Lane, step: int) -> bool:
        """Between two steps of a lane; the compute lane reports on the one behind it."""
        assert self.control is not None
        if lane is Lane.COMPUTE and step > self._begin.step:
            self.control.post(step - 1, self._report(step - 1))
        return self.control.gate(lane, step)

    def _report(self, step: int) -> RankReport:
        now_s = time.perf_counter()
        times = self.lanes.take_times()
        losses = self.ops.losses.pop(step, None)
        waited = times.waited_s
        first = self._seat.division.rank == 0  # all ranks of a tensor group have the same losses
        report = RankReport(
            loss_sum=sum(float(loss) for loss in losses) if losses and first else NAN,
            step_time_s=now_s - self._step_began_s,
            compute_s=times.compute_s,
            recovery_s=times.recovery_s,
            stages_s=sum(waited[lane] for lane in _NEIGHBOURS),
            reduce_s=waited[Lane.REDUCE],
            gather_s=waited[Lane.GATHER],
            update_s=waited[Lane.UPDATE],
            ledger_peak_bytes=float(self.ledger.peak.size_bytes),
            allocated_peak_bytes=float(self._allocator.peak_bytes),
            resident_bytes=float(resident_bytes()),
            gradient_norm=self.ops.gradient_norm.pop(step - 1, NAN),
            stop=float(self._stop_asked()),
        )
        self._step_began_s = now_s
        return report

    def _unit(self, name: str) -> Unit:
        return unit_of(
            self._job.model.spec,
            name,
            sequence_length=self._job.model.sequence_length,
            group=self._network.tensor_group(Lane.COMPUTE),
        )

    def _sizes(self) -> Sizes:
        length, spec = self._job.model.sequence_length, self._job.model.spec
        return Sizes(
            boundary=(self._spec.micro_batch, length, spec.hidden),
            tokens=self._job.batch.sequences * length,
        )
