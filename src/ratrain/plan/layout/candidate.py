"""One row of a group as a program: its layout, strategy, setup and choices."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from ratrain.describe.cluster import Device
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.layout.enumerate import Group, StateMode
from ratrain.plan.layout.placement import Placement, ReplicaClass
from ratrain.plan.layout.sizes import stages_of, trains_tied
from ratrain.plan.layout.tiers import tier_budgets
from ratrain.program.families import DEVICE
from ratrain.program.replicas import Recovery, Replica, Stage
from ratrain.program.setup import Accumulation, Budget, Setup
from ratrain.program.strategies import Choices, Strategy
from ratrain.program.units import Ints

MODES = tuple(Recovery)


@dataclass(frozen=True)
class Candidate:
    """A configuration in full: everything that a plan file says."""

    job: JobSpec  # with micro-batch and layout
    placement: Placement
    strategy: Strategy
    recovery: tuple[Recovery, ...]  # of each stage
    mode: StateMode
    buffer: int
    reversed_kinds: bool = False

    @property
    def layout(self) -> LayoutSpec:
        return self.placement.layout

    @property
    def layers(self) -> tuple[int, ...]:
        assert isinstance(self.layout.layers, tuple)
        return self.layout.layers

    @property
    def idle(self) -> tuple[Device, ...]:
        """The job's devices that it leaves idle."""
        if self.layout.devices == self.job.cluster.devices:
            return ()
        used = {device.index for device in self.placement.devices}
        return tuple(d for d in self.job.cluster.members() if d.index not in used)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one replica in one step."""
        return self.job.batch.sequences // (self.layout.data * self.job.batch.micro_batch)

    @property
    def setup(self) -> Setup:
        return setup_of(self.job, self.placement, self.buffer)

    @property
    def choices(self) -> Choices:
        return choices_of(self.job, self.mode.sharded_gradients, recovery=self.recovery)

    @property
    def is_layout(self) -> bool:
        """Whether a layout says it all: its replicas are divided alike."""
        return True

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sequences that a rank computes at once: every number that there is."""
        return (self.job.batch.micro_batch,)

    @property
    def modes(self) -> tuple[Recovery, ...]:
        """What becomes of activations, stage by stage."""
        return self.recovery

    @property
    def key(self) -> object:
        """What tells it from other configurations of its job."""
        return (
            self.layout,
            self.job.batch.micro_batch,
            self.strategy.skeleton,
            self.recovery,
            self.mode,
            self.reversed_kinds,
        )

    def keeping(self, ranks: Collection[int]) -> Candidate:
        """The plan whose stages on these program ranks keep every activation, in every replica."""
        pipeline = self.layout.pipeline
        kept = {rank % pipeline for rank in ranks}
        recovery = tuple(
            Recovery.NONE if stage % pipeline in kept else mode
            for stage, mode in enumerate(self.recovery)
        )
        return replace(self, recovery=recovery)


def candidate(group: Group, row: int, recovery: Ints) -> Candidate:
    """A group's row, with the recovery code of each of its stages."""
    layers = tuple(int(n) for n in group.layers[row])
    layout = replace(group.layout, layers=layers)
    mode = group.modes[int(group.mode[row])]
    return Candidate(
        replace(group.job, layout=layout),
        replace(group.placement, layout=layout),
        replace(group.strategy, sharding=mode.sharding),
        tuple(MODES[int(code)] for code in recovery),
        mode,
        int(group.buffer[row]),
        group.reversed_kinds,
    )


def choices_of(job: JobSpec, sharded_gradients: bool, **recovery: Any) -> Choices:
    """What the job and its backend decide of a program, beside the recovery given."""
    backend = job.backend
    return Choices(
        accumulation=Accumulation.SHARDED if sharded_gradients else Accumulation.LOCAL,
        bucket_bytes=job.bucket_bytes,
        backward_sends=job.backward_sends,
        clip=job.train.clip_norm is not None or job.awaits_overflow,
        save=backend.saves,
        tie=trains_tied(job),
        error_feedback=job.residuals,
        optimizer_tier=job.optimizer_tier,
        average_steps=job.schedule.average_every or 0,
        **recovery,
    )


def setup_of(job: JobSpec, placement: Placement, buffer: int) -> Setup:
    """The header of a placed job's program, before its strategy's passes."""
    layout = placement.layout
    micro_batches = job.batch.sequences // (layout.data * job.batch.micro_batch)
    replicas = tuple(
        Replica(_stages(job, placement, alike), micro_batches, len(alike.members))
        for alike in placement.classes
    )
    kinds = [placement.kind(kind) for alike in placement.classes for kind in alike.kinds]
    budgets = [job.budget_of(kind) for kind in kinds]
    return Setup(
        replicas=replicas,
        sequence_parallel=layout.sequence_parallel,
        recovery_buffer=buffer,
        budget_bytes=max(budgets),
        tier=placement.kind(placement.classes[0].kinds[0]).memory.name,
        budgets=(*unequal_budgets(budgets), *tier_budgets(job, kinds)),
    )


def _stages(job: JobSpec, placement: Placement, alike: ReplicaClass) -> tuple[Stage, ...]:
    """The stages of replicas that are alike, each as its kind of device has it."""
    layout = placement.layout
    if not job.unlike:
        return stages_of(job, layout)
    of_kind = {
        name: stages_of(job.of_kind(placement.kind(name)), layout) for name in set(alike.kinds)
    }
    return tuple(
        of_kind[alike.kinds[number % layout.pipeline]][number] for number in range(layout.stages)
    )


def unequal_budgets(budgets: list[int]) -> tuple[Budget, ...]:
    """Budgets of their own for ranks that have less than the others."""
    largest = max(budgets)
    runs: list[Budget] = []
    for rank, size in enumerate(budgets):
        if size == largest:
            continue
        last = runs[-1] if runs else None
        if last and last.last_rank == rank - 1 and last.size_bytes == size:
            runs[-1] = replace(last, last_rank=rank)
        else:
            runs.append(Budget(rank, rank, DEVICE, size))
    return tuple(runs)
