"""A plan whose stages and replicas differ, made ready to prove and simulate."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from ratrain.describe.job import JobSpec
from ratrain.describe.lines import wrapped
from ratrain.describe.ranges import (
    RANKS,
    STAGES,
    write_degrees,
    write_kinds,
    write_list,
    write_ranges,
)
from ratrain.describe.units import counted
from ratrain.errors import ProgramError
from ratrain.plan.case.case import recovery_words
from ratrain.plan.case.measured_blocks import words_of
from ratrain.plan.file.members import share_text
from ratrain.plan.file.uneven import UnevenPlan, UnevenReplica
from ratrain.plan.layout.further_orders import order_words
from ratrain.plan.layout.gradient_groups import collective_words
from ratrain.plan.layout.sizes import gradients_in, travels
from ratrain.plan.price.trial import proof
from ratrain.plan.price.uneven_places import uneven_costs
from ratrain.program.program import Program
from ratrain.program.repeating import Repeating
from ratrain.program.settled import Proved
from ratrain.program.setup import Setup
from ratrain.program.strategies import Choices, Strategy
from ratrain.simulate.costs import Costs


@dataclass(frozen=True)
class UnevenCase:
    """What `Case` is for a layout, for a plan of any replicas."""

    plan: UnevenPlan
    beside: tuple[str, ...] = ()
    """Lines of the headline: which plan was not taken, where a job was planned (`case_of_job`)"""

    @property
    def job(self) -> JobSpec:
        return self.plan.job

    @property
    def setup(self) -> Setup:
        return self.plan.setup

    @property
    def strategy(self) -> Strategy:
        return self.plan.strategy

    @property
    def choices(self) -> Choices:
        return self.plan.choices

    @cached_property
    def proved(self) -> Proved:
        """The program, kept short where it is long and repeats itself, with its proof."""
        with self._named():
            return proof(self.plan.strategy, self.plan.setup, self.plan.choices)

    @cached_property
    def program(self) -> Program:
        """The program, written out."""
        program = self.proved.program
        with self._named():
            return program.written_out() if isinstance(program, Repeating) else program

    @cached_property
    def costs(self) -> Costs:
        return uneven_costs(self.plan, self.proved.short.setup)

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.job.batch.sequences * self.job.model.sequence_length

    @contextmanager
    def _named(self) -> Generator[None]:
        """A program that cannot be made is the fault of the plan."""
        try:
            yield
        except ProgramError as error:
            place = f"{self.job.path} {error.place or '[replicas]'}"
            fix = error.fix or "divide all replicas alike, or use another schedule"
            raise ProgramError(error.what, place=place, fix=fix) from error

    @property
    def _idle(self) -> list[int]:
        used = {device.index for device in self.plan.devices}
        return [index for index in range(self.job.cluster.devices) if index not in used]

    @property
    def _idle_kinds(self) -> set[str]:
        """Device kinds of which the plan uses none."""
        used = {device.kind.name for device in self.plan.devices}
        return {kind.name for kind in self.job.cluster.kinds} - used

    @property
    def _measured(self) -> list[str]:
        """Where times were measured, once for each kind of device and degree."""
        sentences = [
            sentence
            for replica in self.plan.replicas
            for rank, group in enumerate(replica.groups[0])
            for sentence in words_of(
                self.plan.job_of(replica, rank), replica.layout_of(rank), group[0].kind
            )
        ]
        return list(dict.fromkeys(sentences))

    def facts(self) -> dict[str, object]:
        """What the plan is and what was chosen for it, for JSON."""
        job, setup = self.job, self.plan.setup
        return {
            "model": job.model.spec.name,
            "sequence_length": job.model.sequence_length,
            "cluster": job.cluster.spec.name,
            "devices": job.cluster.devices,
            "idle_devices": self._idle,
            **dict.fromkeys(("pipeline", "tensor", "virtual", "layers_per_stage", "activations")),
            "data": setup.data,
            "sequence_parallel": self.plan.sequence_parallel,
            "replicas": [self._facts_of(replica) for replica in self.plan.replicas],
            "micro_batches": [replica.micro_batches for replica in setup.replicas],
            "schedule": job.schedule.name,
            "order": self.plan.strategy.skeleton,
            "without": list(job.schedule.without),
            "sharding": self.plan.strategy.sharding,
            "gradients": self.proved.short.setup.accumulation.value,
            "backend": job.schedule.backend,
            "dtype": job.schedule.dtype,
            "dtypes": {k: d for k, d in job.dtypes.items() if k not in self._idle_kinds},
            "gradient_dtype": job.schedule.gradient_dtype,
            "gradient_wire": job.schedule.gradients_travel_in,
            "boundary_wire": job.schedule.boundaries_travel_in,
            "error_feedback": job.schedule.error_feedback,
            "collective": job.collective,
            "measured_times": self._measured,
        }

    def _facts_of(self, replica: UnevenReplica) -> dict[str, object]:
        return {
            "count": len(replica.members),
            "numbers": list(replica.members),
            "device_kinds": list(replica.kinds),
            "budget_bytes": [self.job.budget_of(group[0].kind) for group in replica.groups[0]],
            "pipeline": replica.layout.pipeline,
            "tensor": list(replica.tensor),
            "virtual": replica.layout.virtual,
            "layers_per_stage": list(_layers(replica)),
            "micro_batch": replica.micro_batch,
            "micro_batch_of_ranks": list(replica.sizes),
            "micro_batches": replica.micro_batches,
            "serves": [share_text(share) for share in replica.serves],
            "ranks_of_places": [list(ranks) for ranks in replica.places],
            "activations": activations_words(replica),
        }

    def headline(self) -> list[str]:
        """The same in a few lines of at most 80 columns."""
        job, setup = self.job, self.plan.setup
        strategy = job.schedule.name
        if job.schedule.without:
            strategy += f" without {', '.join(job.schedule.without)}"
        gradients = self.proved.short.setup.accumulation.value + gradients_in(job.schedule)
        divided = ", sequence parallel" if self.plan.sequence_parallel else ""
        lines = [
            f"{job.model.spec.name} on {job.cluster.devices} x {job.cluster.spec.name}: "
            f"{shapes_words(self.plan)}{divided}",
            f"{strategy}: gradients {gradients}, sharding level {self.plan.strategy.sharding}",
            *order_words(job.schedule, self.plan.strategy),
            *travels(job, self._idle_kinds),
            *collective_words(job, ()),
        ]
        first_rank = setup.first_rank
        for replica, first in zip(self.plan.replicas, first_rank, strict=True):
            lines += _lines_of(replica, first)
        if self._idle:
            lines.append(f"idle: {counted(len(self._idle), 'device')}, {write_ranges(self._idle)}")
        lines += [*self._measured, *self.beside]
        return [part for line in lines for part in wrapped(line, _indent(line))]


def shapes_words(plan: UnevenPlan) -> str:
    """How many replicas it has, and of how many shapes."""
    replicas, shapes = counted(plan.setup.data, "replica"), len(plan.setup.replicas)
    if plan.setup.data == 1:
        return replicas
    return f"{replicas}, all alike" if shapes == 1 else f"{replicas} of {shapes} shapes"


def _layers(replica: UnevenReplica) -> tuple[int, ...]:
    assert isinstance(replica.layout.layers, tuple)
    return replica.layout.layers


def _indent(line: str) -> str:
    """Where the lines stand that a line is continued on."""
    return "    " if line.startswith(" ") else "  "


def share_words(micro_batches: int, size: int) -> str:
    """A replica's share of a step: "9 micro-batches of 1 sequence"."""
    return (
        f"{micro_batches:,} micro-batch{'es' * (micro_batches != 1)} of {counted(size, 'sequence')}"
    )


def joined_words(replica: UnevenReplica) -> list[str]:
    """How many sequences its ranks compute at once, where they differ in that; else nothing."""
    if not replica.joined:
        return []
    return [f"sequences at once per rank {write_list(replica.sizes, RANKS)}"]


def activations_words(replica: UnevenReplica, first_rank: int = 0) -> str:
    """What a replica keeps and recovers: "kept on every stage". Where stages have several members
    that differ, what its ranks do, numbered from `first_rank`."""
    if not replica.has_members or len(set(replica.recovery)) == 1:
        return recovery_words(replica.recovery)
    return recovery_words(replica.recovery, RANKS, first_rank)


def _lines_of(replica: UnevenReplica, first_rank: int) -> list[str]:
    """A sort of replicas: how many, its ranks, what they hold, on what, and its share; and a line
    for each stage of several members."""
    ranks = f"rank{'s' * (replica.ranks > 1)} "
    ranks += write_ranges(range(first_rank, first_rank + replica.ranks))
    parts = (
        f"layers per stage {write_list(_layers(replica), STAGES)}",
        f"tensor degree {write_degrees(replica.tensor)}",
        f"on {write_kinds(replica.kinds)}",
        share_words(replica.micro_batches, replica.micro_batch),
        *joined_words(replica),
        f"activations {activations_words(replica, first_rank)}",
    )
    count = len(replica.members)
    alike = f"{count} replicas, each like {ranks}" if count > 1 else f"1 replica ({ranks})"
    line = f"{alike}: {'; '.join(parts)}"
    return [line, *_member_lines(replica, first_rank)]


def _member_lines(replica: UnevenReplica, first_rank: int) -> Iterator[str]:
    """ "  stage 1: rank 1 serves 0-5, 7; rank 2 serves 6"."""
    for place, ranks in enumerate(replica.places):
        if len(ranks) > 1:
            stages = write_ranges(range(place, replica.layout.stages, replica.layout.pipeline))
            members = (
                f"rank {first_rank + rank} serves {share_text(replica.serves[rank])}"
                for rank in ranks
            )
            yield f"  stage {stages}: {'; '.join(members)}"
