"""Compute ops as CUDA graphs: each is recorded once and replayed in every step after.

A GPU that is given kernels one by one by Python stands idle between them. A program says the same
ops in the same order in every step, so an op's kernels can be launched as one: its tensors have the
same places each time. All graphs share one pool of memory, in which a state's place is used again
once it has ended, as in the step that was recorded; so they must be replayed in that order, and
what other lanes read or free lies outside it: gradients, which are kept for the whole run.

That holds where a rank computes whole replicas by itself: nothing that compute reads comes from a
peer. Everything else runs as it does without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ratrain.describe.train import TrainSpec
from ratrain.devices import Device
from ratrain.errors import RunFailed
from ratrain.models.units import MicroBatch
from ratrain.program.kind import Kind, Lane
from ratrain.runtime.step.ops import Batches, RankOps
from ratrain.runtime.step.schedule import LocalOp, Schedule

_RECORDED = (Kind.F, Kind.R, Kind.B)
_EAGER_STEPS = 2
"""First, so that kernels are compiled, and tables and workspaces made."""
_IN_ONE_PLACE = ("input", "saved", "view", "gradient")
"""What recorded ops read or write."""


def can_be_recorded(train: TrainSpec, schedule: Schedule, device: Device) -> bool:
    """Whether ops may be recorded, and a rank's compute reads nothing that comes from a peer and
    finds weights and gradients in one place."""
    setup = schedule.program.setup
    computed = (op.kind for op in schedule.ops if op.lane is Lane.COMPUTE)
    return (
        train.graphs
        and device.kind == "cuda"
        and setup.period == setup.tensor == 1
        and setup.sharding < 3
        and not setup.backward_sends
        and not any(op.kind.is_message for op in schedule.ops)
        and not any(unit.waits(sort) for unit in schedule.units for sort in _IN_ONE_PLACE)
        and all(kind in _RECORDED or kind.is_barrier for kind in computed)
    )


def need_no_wait(schedule: Schedule) -> frozenset[int]:
    """Recorded ops whose end no other lane awaits, and which end nothing but what recorded ops make
    (it lies in their pool, in their order). A step's last op of the lane is waited for."""
    awaited = {other for op in schedule.ops for other in (*op.waits, *op.waits_before)}
    recorded = [op for op in schedule.ops if op.kind in _RECORDED]
    pooled = {state.key for op in recorded for state in op.births}
    steps = [schedule.of_step(Lane.COMPUTE, step) for step in range(schedule.period)]
    last = {ops[-1].number for ops in steps if ops}
    return frozenset(
        op.number
        for op in recorded
        if op.number not in awaited | last and all(state.key in pooled for state in op.deaths)
    )


def share_waited_for(schedule: Schedule) -> float:
    """Of the compute ops, those that the host waits for before it gives the next."""
    computed = [op for op in schedule.ops if op.lane is Lane.COMPUTE]
    return 1 - len(need_no_wait(schedule)) / len(computed) if computed else 1.0


@dataclass
class _Static:
    """A micro-batch in one place, filled anew in each step."""

    step: int
    tokens: Tensor
    targets: Tensor


class StaticBatches:
    """Micro-batches of other batches, each number always in the same memory."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._static: dict[tuple[int, int], _Static] = {}

    def micro_batch(self, step: int, micro_batch: int, joined: int = 1) -> MicroBatch:
        held = self._static.get((micro_batch, joined))
        if held is None or held.step != step:
            fresh = self._batches.micro_batch(step, micro_batch, joined)
            if held is None:
                held = _Static(step, fresh.tokens.clone(), fresh.targets.clone())
                self._static[micro_batch, joined] = held
            else:
                held.tokens.copy_(fresh.tokens)
                held.targets.copy_(fresh.targets)
                held.step = step
        return MicroBatch(held.tokens, held.targets)

    def drawn(self, step: int, micro_batch: int, train: TrainSpec) -> None:
        """Nothing: what is replayed would drop the same in every step."""


class CapturedOps:
    """Executes a rank's ops: those of compute as they were recorded."""

    def __init__(self, schedule: Schedule, ops: RankOps, first_step: int) -> None:
        self._ops = ops
        self._from_step = first_step + _EAGER_STEPS
        self._graphs: dict[int, Any] = {}
        self._losses: dict[int, Tensor] = {}
        self._pool: Any = torch.cuda.graph_pool_handle()
        ops.batches = StaticBatches(ops.batches)
        ops.keep_in_place()
        self._ahead = need_no_wait(schedule)
        self._recorded_in = self._from_step

    def may(self, op: LocalOp, step: int) -> bool:
        """Whether the host need not wait for an op."""
        return step > self._recorded_in and op.number in self._ahead

    def point(self) -> Any:
        """Here, in the stream of the thread that asks."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def execute(self, op: LocalOp, step: int) -> None:
        """Does an op's work."""
        if op.kind not in _RECORDED:
            self._ops.execute(op, step)
            return
        self._ops.prepare(op, step)
        if step < self._from_step:
            self._ops.execute(op, step)
            return
        if op.number not in self._graphs:
            self._record(op, step)
        self._graphs[op.number].replay()
        if op.number in self._losses:
            self._ops.add_loss(step, self._losses[op.number])
        if op.kind is Kind.B:
            self._ops.give_gradient(op)

    def forget(self) -> None:
        """Gives the pool's memory back; ops are recorded again."""
        self._graphs.clear()
        self._losses.clear()
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def _record(self, op: LocalOp, step: int) -> None:
        """Makes an op's graph. What it puts into the rank's states is there, not yet computed."""
        self._recorded_in = step
        if not self._graphs:
            torch.cuda.empty_cache()  # what eager steps took is free for the pool
        graph: Any = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            self._ops.execute(op, step)
            graph.capture_end()
        except RuntimeError as error:  # torch's own, and of the CUDA libraries
            raise RunFailed(
                f"{op.word} could not be recorded as a CUDA graph: {error}",
                place=f"step {step}",
                fix="set graphs = false in [train], or --set train.graphs=false",
            ) from error
        self._graphs[op.number] = graph
        if op.kind is Kind.F and self._ops.unit(op).local.last:
            self._losses[op.number] = self._ops.losses[step].pop()
