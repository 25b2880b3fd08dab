"""One rank's whole run: its states, its lanes, and the loop over steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ratrain.describe.job import JobSpec
from ratrain.devices import Device, Memory
from ratrain.models.functions.attention import FLASH, AttentionCore
from ratrain.models.functions.stored_attention import REMADE, STORED
from ratrain.models.units import Unit, unit_of
from ratrain.plugins import named
from ratrain.program.kind import Kind, Lane, Waiting
from ratrain.program.program import Program
from ratrain.program.replicas import Recovery
from ratrain.runtime.rank.control import Control, RankReport, Round, sums_of_groups
from ratrain.runtime.rank.expert_loads import ExpertLoads
from ratrain.runtime.rank.forwards import Shared
from ratrain.runtime.rank.live import Kept, kept_of
from ratrain.runtime.rank.sampling import Prompts, Sampled, Sampling
from ratrain.runtime.rank.settling import Settling
from ratrain.runtime.rank.tiers import MovedInSteps
from ratrain.runtime.rank.validation import HeldOutShare, Validated, Validation
from ratrain.runtime.run_folder import RunSpec, site_weights
from ratrain.runtime.seats import Seat, dividing
from ratrain.runtime.step.ahead import Ran
from ratrain.runtime.step.batches import ReplicaBatches
from ratrain.runtime.step.below import Tier
from ratrain.runtime.step.captured import CapturedOps, can_be_recorded
from ratrain.runtime.step.clipping import Clipping
from ratrain.runtime.step.exchange.integers import INTEGERS
from ratrain.runtime.step.exchange.narrowing import Wire
from ratrain.runtime.step.lanes import Lanes
from ratrain.runtime.step.ledger import ledgers_of
from ratrain.runtime.step.made_unit import Source
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.ops import RankOps, Sizes
from ratrain.runtime.step.optimizer import LossScale
from ratrain.runtime.step.process import resident_bytes
from ratrain.runtime.step.schedule import Schedule, is_first_of_last_stage, schedule_of
from ratrain.runtime.step.state_ops import Saver
from ratrain.runtime.step.states import DTYPES, Numbers, RankStates, rank_states
from ratrain.runtime.step.unit_state import Collectives

NAN = float("nan")
CALLED_BACK_S = 20.0
"""How long an op that has begun may take to end, once lanes are called back."""
MOST_RECORDED = 64
"""Steps of a period that are recorded whole, at most."""
_OWN_UPDATES = (Kind.UpdateShard, Kind.MirrorUpdate)


@dataclass(frozen=True)
class Begin:
    """Where a run begins: at step 0, or behind a checkpoint."""

    step: int
    source: Source
    loss_scale: float
    good_steps: int = 0
    skipped_steps: int = 0  # of those before: their gradients were not finite


class CountedTokens:
    """How many tokens divide a step's loss, for the few steps that ops may be in."""

    def __init__(self) -> None:
        self._by_step: dict[int, int] = {}

    def take(self, step: int, count: int) -> None:
        self._by_step[step] = count
        self._by_step.pop(step - 4, None)

    def of(self, step: int) -> int:
        return self._by_step[step]


def _numbers(spec: RunSpec) -> list[Numbers]:
    """Those of each world rank."""
    ranks = range(spec.seats.world_size)
    return [Numbers(DTYPES[spec.dtype_of(r)], DTYPES[spec.gradient_dtype_of(r)]) for r in ranks]


class RankRun:
    """A rank that is ready to run. `on_round` is called with every control round, `validated` with
    the loss on held-out sequences and the number of steps before it, `failing` with a lane's error,
    before other ranks find this one gone. `tiers`: of its memory, beside the device's own."""

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
        device: Device,
        on_round: Callable[[int, Round], None],
        stop_asked: Callable[[], bool],
        allocator: Memory,
        held_out: HeldOutShare | None = None,
        validated: Callable[[int, Validated], None] = lambda *_: None,
        prompts: Prompts | None = None,
        sampled: Callable[[int, Sampled], None] = lambda *_: None,
        failing: Callable[[BaseException], None] = lambda _: None,
        tiers: Mapping[str, Tier],
        ops: type[RankOps] = RankOps,  # what does them; those of validations are the backend's
    ) -> None:
        self._job, self._spec, self._seat = job, spec, seat
        self._stop_asked, self._failing = stop_asked, failing
        self._allocator = allocator
        self._network = network
        self._begin = begin
        self._step_began_s = time.perf_counter()
        setup = program.setup
        self._budget_bytes = setup.budget_of(seat.program_rank)
        micro_batch, model = spec.micro_batch_of(seat.data), job.model
        self.sizes = Sizes((micro_batch, model.sequence_length, model.spec.hidden))
        self._groups = dividing(setup, spec.seats)
        self._counted = CountedTokens()
        self.schedule: Schedule = schedule_of(program, seat.program_rank)
        self.ledgers = ledgers_of(self.schedule)
        self.ledger = self.ledgers.device
        self._computes_on = device.words
        self._moved = MovedInSteps(tiers)
        self.states: RankStates = rank_states(
            self.schedule,
            spec.seats,
            seat,
            self._unit,
            begin.source,
            _numbers(spec),
            Wire(
                DTYPES[spec.gradients_travel_in],
                DTYPES[spec.boundaries_travel_in],
                INTEGERS.get(setup.average_wire),
            ),
            device,
            job.train.rule,
            lambda unit: Collectives(*spec.collectives_of(unit)),
            tiers,
            spec.hosts,
            site_weights(spec, setup),
        )
        for unit in self.states.units:
            for held in filter(None, (unit, unit.mirror)):
                held.version = begin.step
        timeout_s = job.train.timeout_s
        scaled = spec.scales_losses
        self.ops = ops(
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
                by_unit=scaled and job.train.overflow == "unit",
            ),
            self._counted.of,
        )
        self.ops.clipping.begin(begin.step)
        self.settling = Settling(setup, spec.seats, seat, self.ops, self.states.units, network)
        self.ops.saves_later = self._saves_later
        self._captured: CapturedOps | None = None
        if can_be_recorded(job.train, self.schedule, device):
            self._captured = CapturedOps(self.schedule, self.ops, begin.step)
        self.lanes = Lanes(
            self.schedule,
            self._execute,
            self.ledgers,
            timeout_s=timeout_s,
            held=self.states.held,
            device=device,
            meet=self.ops.meet,
            stop=self._stop_waiting,
            ahead=self._captured,
        )
        self._on_round, self._validated, self._sampled = on_round, validated, sampled
        shared = Shared(
            seat,
            self.states,
            network,
            job.train,
            self.sizes,
            self.ops.clipping,
            self.ledgers,
            device,
            named(job.backend.ops),
        )
        self._validation = held_out and Validation(program, shared, held_out)
        self._sampling = prompts and Sampling(program, shared, prompts, micro_batch)
        self._segment = (begin.step, begin.step)  # the steps between two validations
        self._reached = begin.step
        self._batches = batches
        self._tells = seat.division.rank == 0 and any(unit.last for unit in self.schedule.units)
        self._counts = self._tells and is_first_of_last_stage(self.schedule)
        self.control: Control | None = None

    @property
    def records_graphs(self) -> bool:
        """Whether ops of compute are recorded and replayed."""
        return self._captured is not None

    def kept(self) -> Kept:
        """What this rank keeps for another episode, once it is called back."""
        kept = self._kept()
        if not self.lanes.stands_before(Kind.Commit):
            return kept
        return replace(kept, later=self._kept_later, later_beside=self._beside_later())

    def _kept(self) -> Kept:
        reports = self.control.unanswered if self.control else {}
        return kept_of(self.states, self.ops.clipping, self._job.train.rule, reports)

    def _kept_later(self) -> Kept:
        """The same behind the step's updates, where the ranks had not told each other any more that
        all could do them."""
        self.lanes.finish(_OWN_UPDATES, passing=Kind.Commit)
        return self._kept()

    def _beside_later(self) -> Mapping[str, float]:
        step = max(unit.version for unit in self.states.units)
        return self.ops.clipping.state_after(step)

    @property
    def first_step(self) -> int:
        return self._begin.step

    @property
    def end_step(self) -> int:
        """The step before which the run ends, as far as is agreed by now."""
        return self._spec.end_step if self.control is None else self.control.end_step

    def complete(self) -> None:
        """Gets from the other replicas what this rank holds of theirs; all of them call it."""
        self.states.complete(self._network)

    def save_with(self, *savers: Saver) -> None:
        """Save ops go to these."""
        self.ops.savers = savers

    def save_held(self) -> None:
        """Saves what survivors hold of a run whose last step was done when a rank was lost: no step
        is left that would."""
        for unit in self.states.units:
            self.ops.save_unit(unit, self._spec.end_step - 1)

    def is_last(self, step: int) -> bool:
        """Whether a step is the run's last; waits until that is agreed."""
        assert self.control is not None
        return self.control.is_last(step)

    def run(self) -> None:
        """All steps, from the beginning to the end that control decides."""
        first = self._begin.step
        for step in (first, first + 1):
            own_count = torch.tensor([self._counted_here(step)], dtype=torch.float64)
            count = self._network.combine(None, own_count, self._sums_of_groups)
            self._counted.take(step, int(count))
        control = Control(
            self._network,
            first_step=first,
            end_step=self._spec.end_step,
            period=self.schedule.program.setup.alike_every,
            groups=self._groups,
            on_round=self._take,
            fail=self.fail,
        )
        self.control = control
        self._experts = ExpertLoads(self.states.units)
        self._allocator.reset_peak()
        if self._budget_bytes is not None:
            self._allocator.limit(self._budget_bytes)  # what waits on the host has its own pool
        self.lanes.record_last(self._recorded_steps())
        self.settling.begin(first)
        try:
            while first < self._spec.end_step:
                self._run_segment(first, control)
                if self._reached == first:
                    break  # the run was asked to stop
                first = self._reached
                if self.settling.apart and control.is_last(first - 1):
                    self.settling.settle(first)
                self._between_steps(first)
            control.finish()
        finally:
            control.abandon()

    def _saves_later(self, step: int) -> bool:
        return self.settling.averages and self.is_last(step)

    def _between_steps(self, step: int) -> None:
        """What is due after so many steps, while the lanes stand still."""
        interval = self._job.train.sample_every
        samples = self._sampling if interval and step % interval == 0 else None
        validates = self._validation if self._is_validated(step) else None
        if self._captured is not None and (validates or samples):
            self._captured.forget()
        if validates is not None:
            self._validated(step, validates.run())
        if samples is not None:
            self._sampled(step, samples.run())

    def _run_segment(self, first: int, control: Control) -> None:
        """Steps up to what is due next between two, or to the end. Where the run ends between two
        averages its last steps are a period of their own: the last ones of the program's, which
        average."""
        train, upto = self._job.train, self._spec.end_step
        intervals = (
            train.validate_every if self._validation else 0,
            train.sample_every if self._sampling else 0,
        )
        for interval in filter(None, intervals):
            upto = min(upto, (first // interval + 1) * interval)
        rest, ahead = self._spec.end_step % self.schedule.program.setup.alike_every, 0
        if first < self._spec.end_step - rest:
            upto = min(upto, self._spec.end_step - rest)
        elif rest:
            ahead = self.schedule.period - rest
        self._segment = first, min(upto, self._spec.end_step)
        self._step_began_s = time.perf_counter()
        with self._moved.counted():
            self.lanes.run(first, self._gate, ahead=ahead, failed=control.abandon)
        self._moved.steps += self._reached - first

    def _recorded_steps(self) -> int:
        """As many as were asked for; where it is not too long, at least a whole period, the step
        before it, and a shorter one behind it."""
        period = self.schedule.period
        needed = period + 1 + self._spec.end_step % period if 1 < period <= MOST_RECORDED else 0
        return max(self._spec.record_steps, needed)

    def _is_validated(self, step: int) -> bool:
        interval = self._job.train.validate_every
        return step == self._spec.end_step or bool(interval and step % interval == 0)

    def call_back(self) -> bool:
        """After a failure: whether no lane and no round of control is at work any more. Updates
        that had all they need are done then."""
        self._network.hang_up()
        lanes = [self.lanes, *self._other_lanes]
        back = all(each.are_back(CALLED_BACK_S) for each in lanes)
        back = back and (self.control is None or self.control.is_back(CALLED_BACK_S))
        if back:
            self.lanes.finish(_OWN_UPDATES)
        return back

    def _stop_waiting(self) -> None:
        """A lane has failed: nobody waits for it, on any rank."""
        if self.lanes.failure is not None:
            self._failing(self.lanes.failure)
        self.ops.stop()
        self._network.hang_up()

    def fail(self, error: BaseException) -> None:
        """Stops all lanes with an error found elsewhere; from any thread."""
        for lanes in (self.lanes, *self._other_lanes):
            lanes.fail(error)

    @property
    def _other_lanes(self) -> list[Lanes]:
        return [each.lanes for each in (self._validation, self._sampling) if each is not None]

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

    def experts(self) -> dict[str, Any] | None:
        """How the run's tokens were spread over the experts of each layer here."""
        return self._experts.as_json()

    def memory(self) -> dict[str, Any]:
        """The ledger's peak, itemised, and what the allocator saw: tensors, and the
        buffers of products."""
        return {
            "rank": self._seat.world_rank,
            **asdict(self.ledger.peak),
            "ledger_waits": self.ledger.waits,
            "tiers": {tier: asdict(ledger.peak) for tier, ledger in self.ledgers.others.items()},
            "moved": self._moved.as_json(),
            "allocated_peak_bytes": self._allocator.peak_bytes if self._allocator.counts else None,
            "product_peak_bytes": self._allocator.product_peak_bytes,
            "resident_bytes": resident_bytes(),
            "computes_on": self._computes_on,
        }

    def _take(self, step: int, reports: Round, counted_ahead: int) -> None:
        """A control round: it ends before any lane begins the step after the next one."""
        self._counted.take(step + 2, counted_ahead)
        self._on_round(step, reports)

    def _sums_of_groups(self, rows: list[Tensor]) -> list[Tensor]:
        sums = sums_of_groups([float(row) for row in rows], self._groups)
        return [torch.tensor([each], dtype=torch.float64) for each in sums]

    def _counted_here(self, step: int) -> float:
        """What of this rank's replica counts; NaN where another rank of the replica reports it."""
        return float(self._batches.counted(step)) if self._counts else NAN

    def _execute(self, op: Any, step: int) -> None:
        (self._captured or self.ops).execute(op, step)

    def _gate(self, lane: Lane, step: int) -> bool:
        """Between two steps of a lane; the compute lane reports on the one before."""
        assert self.control is not None
        first, upto = self._segment
        if lane is Lane.COMPUTE and step > first:
            self.control.post(step - 1, self._report(step - 1))
        goes = step < upto and self.control.gate(lane, step)
        if lane is Lane.COMPUTE and not goes:
            self._reached = step
        return goes

    def _report(self, step: int) -> RankReport:
        now_s = time.perf_counter()
        times = self.lanes.take_times()
        losses = self.ops.losses.pop(step, None)
        waited, sent_bytes = times.waited_s, self._network.sent_bytes
        stalled_s = self.ops.take_stalled_s()
        # All ranks of a tensor group have the same losses: the first reports them. Of several
        # members of the last stage, each reports those of the micro-batches that it serves.
        report = RankReport(
            loss_sum=sum(float(loss) for loss in losses) if losses and self._tells else NAN,
            counted=self._counted_here(step),
            counted_ahead=self._counted_here(step + 2),
            step_time_s=now_s - self._step_began_s,
            compute_s=times.compute_s - stalled_s,
            recovery_s=times.recovery_s,
            stages_s=waited[Waiting.MESSAGE] + waited[Waiting.TENSOR],
            reduce_s=waited[Waiting.REDUCE] + stalled_s,
            gather_s=waited[Waiting.GATHER],
            update_s=waited[Waiting.UPDATE],
            ledger_peak_bytes=float(self.ledger.peak.size_bytes),
            allocated_peak_bytes=float(self._allocator.peak_bytes)
            if self._allocator.counts
            else NAN,
            resident_bytes=float(resident_bytes()),
            sent_bytes=NAN if sent_bytes is None else float(sent_bytes),
            gradient_norm=self.ops.gradient_norm.pop(step - 1, NAN),
            skipped_updates=float(self.ops.skipped_updates.pop(step - 1, 0)),
            **self._experts.take_step()._asdict(),
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
            core=self._attention_of(name),
        )

    def _attention_of(self, name: str) -> AttentionCore:
        """How a unit's attention is computed: with scores that are kept, or made again where the
        stage recovers selectively."""
        if self._spec.attention == "flash":
            return FLASH
        recovery = next(
            (m.recovery for _, m in self.schedule.held if name in {u.name for u in m.units}),
            Recovery.NONE,
        )
        return REMADE if recovery is Recovery.SELECTIVE else STORED
