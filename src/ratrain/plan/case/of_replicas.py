"""A plan whose stages and replicas differ, made ready to prove and simulate."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ratrain.describe.cluster import Device
from ratrain.describe.job import JobSpec
from ratrain.describe.lines import wrapped
from ratrain.describe.ranges import STAGES, write_degrees, write_kinds, write_list, write_ranges
from ratrain.describe.units import counted
from ratrain.errors import ProgramError
from ratrain.plan.case.layout_words import mode_words
from ratrain.plan.case.measured_blocks import words_of
from ratrain.plan.case.ready import Case
from ratrain.plan.case.replicas_words import (
    activations_of_all,
    activations_words,
    cuts_words,
    joined_words,
    part_words,
    plan_words,
    replica_details,
    shapes_words,
    share_words,
)
from ratrain.plan.case.standing import Standing, standing_of_plan
from ratrain.plan.file.checks import untrainable
from ratrain.plan.file.members import share_text
from ratrain.plan.file.uneven import UnevenPlan, UnevenReplica
from ratrain.plan.layout.further_orders import order_words
from ratrain.plan.layout.gradient_groups import collective_words
from ratrain.plan.layout.sizes import gradients_in, optimizer_words, travels
from ratrain.plan.layout.unit_place import UnitPlace
from ratrain.plan.price.uneven_places import uneven_costs, uneven_unit_places
from ratrain.simulate.costs import Costs


@dataclass(frozen=True)
class UnevenCase(Case):
    """A plan of any replicas."""

    replicas: UnevenPlan

    @cached_property
    def plan(self) -> UnevenPlan:
        return self.replicas

    def _costs_of(self, job: JobSpec) -> Costs:
        return uneven_costs(self._by(job), self.proved.short.setup)

    def _by(self, job: JobSpec) -> UnevenPlan:
        """The plan with a job's collective."""
        of_plan = self.plan.job
        schedule = replace(of_plan.schedule, collective=job.schedule.collective)
        return replace(self.plan, job=replace(of_plan, schedule=schedule))

    @contextmanager
    def _named(self) -> Generator[None]:
        """A program that cannot be made is the fault of the plan."""
        try:
            yield
        except ProgramError as error:
            place = f"{self.job.path} {error.place or '[replicas]'}"
            fix = error.fix or "divide all replicas alike, or use another schedule"
            raise ProgramError(error.what, place=place, fix=fix) from error

    def unit_places(self) -> list[UnitPlace]:
        return uneven_unit_places(self._by(self.settled_job), self.proved.program.setup)

    def standing(self) -> Standing:
        return standing_of_plan(self.plan, self.proved.short.setup)

    @property
    def devices(self) -> Sequence[Device]:
        return self.plan.devices

    @property
    def numbers(self) -> tuple[tuple[int, ...], ...]:
        return tuple(replica.members for replica in self.plan.replicas)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(replica.micro_batch for replica in self.plan.replicas)

    @property
    def apart(self) -> bool:
        return len(self.setup.replicas) > 1

    def device(self, data: int, pipeline: int, tensor: int) -> Device:
        replica = next(replica for replica in self.plan.replicas if data in replica.members)
        return replica.groups[replica.members.index(data)][pipeline][tensor]

    @property
    def refusals(self) -> list[tuple[str, str]]:
        return untrainable(self.plan)

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
        job, setup = self.job, self.plan.setup
        return {
            "model": job.model.spec.name,
            "sequence_length": job.model.sequence_length,
            "cluster": job.cluster.spec.name,
            "devices": job.cluster.devices,
            "idle_devices": self.idle,
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

    def run_facts(self) -> dict[str, object]:
        """With figures of the whole run: the ranks of the largest replica, and the first's cut."""
        replicas = self.plan.replicas
        return {
            **self.facts(),
            "pipeline": max(replica.ranks for replica in replicas),
            "tensor": max(max(replica.tensor) for replica in replicas),
            "virtual": max(replica.layout.virtual for replica in replicas),
            "layers_per_stage": replicas[0].layout.layers,
            "activations": activations_of_all(self.plan),
        }

    def headline(self) -> list[str]:
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
            *optimizer_words(job),
            *collective_words(self.settled_job, ()),
        ]
        first_rank = setup.first_rank
        for replica, first in zip(self.plan.replicas, first_rank, strict=True):
            lines += _lines_of(replica, first)
        if self.idle:
            lines.append(f"idle: {counted(len(self.idle), 'device')}, {write_ranges(self.idle)}")
        lines += [*self._measured, *self.beside]
        return [part for line in lines for part in wrapped(line, _indent(line))]

    def plan_headline(self) -> list[str]:
        return self.headline()

    def plan_json(self) -> dict[str, Any]:
        return self.facts()

    def found_json(self) -> dict[str, Any]:
        facts = self.facts()
        return {
            key: facts[key]
            for key in ("idle_devices", "replicas", "order", "sharding", "gradients")
        }

    @property
    def short_name(self) -> str:
        return plan_words(self.plan)

    @property
    def in_brief(self) -> str:
        return shapes_words(self.plan)

    @property
    def name(self) -> str:
        return cuts_words(self.plan)

    @property
    def details(self) -> tuple[str, ...]:
        return (*map(replica_details, self.plan.replicas), mode_words(self.plan.mode))

    @property
    def shares(self) -> list[str]:
        sequences = self.job.batch.sequences
        return [part_words(replica, sequences) for replica in self.plan.replicas]


def uneven_case(plan: UnevenPlan) -> UnevenCase:
    """The case of a plan of any replicas."""
    return UnevenCase(plan.job, plan.strategy, plan.setup, plan.choices, plan)


def _layers(replica: UnevenReplica) -> tuple[int, ...]:
    assert isinstance(replica.layout.layers, tuple)
    return replica.layout.layers


def _indent(line: str) -> str:
    """Where the lines stand that a line is continued on."""
    return "    " if line.startswith(" ") else "  "


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
