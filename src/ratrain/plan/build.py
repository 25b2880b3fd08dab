"""One row of a group as a program: its layout, strategy, setup and choices."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.bill import bucket_bytes
from ratrain.plan.enumerate import Group, StateMode
from ratrain.plan.placement import Placement
from ratrain.plan.sizes import stages_of, trains_tied
from ratrain.program.setup import Accumulation, Recovery, Replica, Setup
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
    def micro_batches(self) -> int:
        """Micro-batches of one replica in one step."""
        return self.job.batch.sequences // (self.layout.data * self.job.batch.micro_batch)

    @property
    def setup(self) -> Setup:
        return setup_of(self.job, self.placement, self.buffer)

    @property
    def choices(self) -> Choices:
        mode = Accumulation.SHARDED if self.mode.sharded_gradients else Accumulation.LOCAL
        choices = Choices(
            accumulation=mode, bucket_bytes=bucket_bytes(self.job), recovery=self.recovery
        )
        return as_trained(choices, self.job)


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


def as_trained(choices: Choices, job: JobSpec) -> Choices:
    """The choices with what the job's [train] and [checkpoint] ask for, where it has [data] and
    so can run: clipping, or fp16's check for overflow, saving, and tied embeddings."""
    if job.data is None:
        return choices
    clip = job.train.clip_norm is not None or job.schedule.dtype == "fp16"
    save = job.checkpoint.every > 0
    return replace(choices, clip=clip, save=save, tie=trains_tied(job))


def setup_of(job: JobSpec, placement: Placement, buffer: int) -> Setup:
    """The header of a placed job's program, before its strategy's passes."""
    layout = placement.layout
    stages = stages_of(job, layout)
    micro_batches = job.batch.sequences // (layout.data * job.batch.micro_batch)
    first = placement.kind(placement.classes[0].kinds[0])
    return Setup(
        replicas=tuple(
            Replica(stages, micro_batches, len(alike.members)) for alike in placement.classes
        ),
        tensor=layout.tensor,
        sequence_parallel=layout.sequence_parallel,
        recovery_buffer=buffer,
        budget_bytes=job.budget_bytes,
        tier=first.memory.name,
    )
