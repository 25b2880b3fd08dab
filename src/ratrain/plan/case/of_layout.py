"""A job made ready to simulate: its setup, its program, its costs, and what memory decided.

Where the job leaves recovery and accumulation to RATrain, these are tried, and the fastest of
those that are proved to fit is taken:

    keep all activations          local gradients, or sharded
    keep all but scores           local, or sharded (where attention stores its scores)
    keep the last stage's alone   local, or sharded
    recover on every stage        local, or sharded
    keep what each stage has memory for, by closed formula

They are timed by short programs (`trial`), those alone that a lower bound (`least_time`) does not
rule out, and proved whole, the fastest first.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ratrain.cost.algorithms import ALGORITHMS, AUTO
from ratrain.describe.cluster import Device
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.lines import wrapped
from ratrain.describe.ranges import write_ranges
from ratrain.describe.units import counted
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.case.choose import choose_order
from ratrain.plan.case.layout_words import (
    ACTIVATIONS,
    candidate_json,
    degrees,
    headline,
    layout_details,
    layout_name,
    mode_words,
    plan_name,
    recovery_words,
)
from ratrain.plan.case.measured_blocks import measured_words
from ratrain.plan.case.ready import Case
from ratrain.plan.case.standing import Standing, standing_of_placement
from ratrain.plan.layout.buckets import require_bucketable
from ratrain.plan.layout.candidate import Candidate, setup_of
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.further_orders import order_words
from ratrain.plan.layout.gradient_groups import collective_words, data_group
from ratrain.plan.layout.jobs import no_shards, require_tieable, require_whole, strategy_of
from ratrain.plan.layout.placement import Placement, place
from ratrain.plan.layout.sizes import gradients_in, layers_of_stages, optimizer_words, travels
from ratrain.plan.layout.tiers import leaner_jobs, require_tier
from ratrain.plan.layout.unit_place import UnitPlace
from ratrain.plan.price.durations import costs_of
from ratrain.plan.price.even_places import even_places
from ratrain.plan.price.trial import only_over_budget
from ratrain.program.program import Program
from ratrain.program.repeating import Repeating
from ratrain.program.replicas import Recovery
from ratrain.program.setup import Accumulation, Setup
from ratrain.program.skeletons import SKELETONS, Place
from ratrain.program.strategies import Strategy
from ratrain.simulate.costs import Costs
from ratrain.simulate.long import simulate_proved


@dataclass(frozen=True)
class LayoutCase(Case):
    """A job with a layout: all of its replicas are divided alike."""

    layout: LayoutSpec
    placement: Placement
    candidate: Candidate | None = None
    """The configuration that it was made of, if it was made of one"""

    @cached_property
    def program(self) -> Program:
        """The program, written out."""
        program = self.proved.program
        try:
            return program.written_out() if isinstance(program, Repeating) else program
        except ProgramError as error:
            place = f"{self.job.path or 'job'} [batch]"
            fix = "cut the batch into fewer micro-batches, or use --form text, which keeps the "
            fix += "repeated middle folded; `verify` and `simulate` take the job as it is"
            raise ProgramError(error.what, place=place, fix=fix) from None

    def _costs_of(self, job: JobSpec) -> Costs:
        return costs_of(job, self.placement, self.proved.short.setup)

    @property
    def activations(self) -> str:
        """What became of activations, in words."""
        if self.choices.recovery is not None:
            return recovery_words(self.choices.recovery)
        if self.strategy.recovery is Recovery.NONE or self.choices.keep_all:
            return "kept on every stage"
        if self.strategy.recovery is Recovery.BACKWARD:
            return "recovered when backward arrives, on every stage"
        if self.choices.exempt_last:
            return "recovered ahead of backward; the last stage keeps its own"
        return "recovered ahead of backward, on every stage"

    def _named(self) -> AbstractContextManager[None]:
        return named_in(self.job)

    @cached_property
    def plan(self) -> Candidate:
        if self.candidate is not None:
            return self.candidate
        setup = self.proved.short.setup  # with the marks of its strategy's passes
        return candidate_of_setup(self.job, self.placement, self.strategy, setup)

    def unit_places(self) -> list[UnitPlace]:
        return even_places(self.settled_job, self.placement, self.proved.program.setup)

    def standing(self) -> Standing:
        return standing_of_placement(self.placement, self.job.cluster.members())

    @property
    def devices(self) -> Sequence[Device]:
        return self.placement.devices

    @property
    def numbers(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(alike.members) for alike in self.placement.classes)

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.job.batch.micro_batch,) * len(self.setup.replicas)

    @property
    def apart(self) -> bool:
        return False

    def device(self, data: int, pipeline: int, tensor: int) -> Device:
        return self.placement.device(pipeline, data, tensor)

    def facts(self) -> dict[str, object]:
        job, layout = self.job, self.layout
        return {
            "model": job.model.spec.name,
            "sequence_length": job.model.sequence_length,
            "cluster": job.cluster.spec.name,
            "devices": job.cluster.devices,
            "idle_devices": self.idle,
            "pipeline": layout.pipeline,
            "data": layout.data,
            "tensor": layout.tensor,
            "virtual": layout.virtual,
            "sequence_parallel": layout.sequence_parallel,
            "layers_per_stage": list(layers_of_stages(job, layout)),
            "micro_batches": [replica.micro_batches for replica in self.setup.replicas],
            "schedule": job.schedule.name,
            "order": self.strategy.skeleton,
            "without": list(job.schedule.without),
            "sharding": self.strategy.sharding,
            "activations": self.activations,
            "gradients": self.proved.short.setup.accumulation.value,
            "backend": job.schedule.backend,
            "dtype": job.schedule.dtype,
            "dtypes": dict(job.dtypes),
            "gradient_dtype": job.schedule.gradient_dtype,
            "gradient_wire": job.schedule.gradients_travel_in,
            "boundary_wire": job.schedule.boundaries_travel_in,
            "error_feedback": job.schedule.error_feedback,
            "collective": job.collective,
            "measured_times": measured_words(job, layout),
        }

    def _collectives(self) -> list[str]:
        if self.layout.data == 1:
            return []
        groups = [data_group(self.placement, rank) for rank in range(self.layout.pipeline)]
        return collective_words(self.settled_job, (group.hosts for group in groups))

    def headline(self) -> list[str]:
        job, layout = self.job, self.layout
        degrees = f"pipeline {layout.pipeline} x data {layout.data}"
        degrees += f" x tensor {layout.tensor}" if layout.tensor > 1 else ""
        degrees += ", sequence parallel" if layout.sequence_parallel else ""
        degrees += f", {layout.virtual} stages per rank" if layout.virtual > 1 else ""
        strategy = job.schedule.name
        if job.schedule.without:
            strategy += f" without {', '.join(job.schedule.without)}"
        gradients = self.proved.short.setup.accumulation.value + gradients_in(job.schedule)
        lines = (
            f"{job.model.spec.name} on {job.cluster.devices} x {job.cluster.spec.name}: {degrees}",
            f"{strategy}: gradients {gradients}, sharding level {self.strategy.sharding}",
            *order_words(job.schedule, self.strategy),
            f"activations {self.activations}",
            *travels(job),
            *optimizer_words(job),
            *self._collectives(),
            *measured_words(job, layout),
        )
        idle = self.idle
        if idle:
            lines = (*lines, f"idle: {counted(len(idle), 'device')}, {write_ranges(idle)}")
        lines = (*lines, *self.beside)
        return [part for line in lines for part in wrapped(line)]

    def plan_headline(self) -> list[str]:
        return headline(self.plan)

    def plan_json(self) -> dict[str, Any]:
        return candidate_json(self.plan)

    def found_json(self) -> dict[str, Any]:
        return candidate_json(self.plan)

    @property
    def short_name(self) -> str:
        return degrees(self.plan)

    @property
    def in_brief(self) -> str:
        activations = ", ".join(dict.fromkeys(ACTIVATIONS[mode] for mode in self.plan.recovery))
        return f"{plan_name(self.plan)}; {activations}"

    @property
    def name(self) -> str:
        return layout_name(self.plan)

    @property
    def details(self) -> tuple[str, ...]:
        return (*layout_details(self.plan), mode_words(self.plan.mode))


def case_of(job: JobSpec) -> LayoutCase:
    """The case of a job that has a layout. What is chosen with it is the best for any collective
    that "auto" may come to."""
    assert job.layout is not None, "a job without a layout is planned first: case_of_job"
    case = _case_in_memory(job)
    if job.collective != AUTO or job.layout.data == 1:
        return case
    cases = [case, *(_as_best_with(job, name) for name in ALGORITHMS)]
    sound = [each for each in cases if each.proved.verdict.sound]
    return min(sound, key=_step_s) if sound else case


def _step_s(case: LayoutCase) -> float:
    return simulate_proved(case.proved, case.costs).step_time_s


def _as_best_with(job: JobSpec, collective: str) -> LayoutCase:
    """The case of a job as it is the fastest with a collective."""
    named = replace(job, schedule=replace(job.schedule, collective=collective))
    case = _case_in_memory(named)
    schedule = replace(case.job.schedule, collective=job.schedule.collective)
    return replace(case, job=replace(case.job, schedule=schedule))


def _case_in_memory(job: JobSpec) -> LayoutCase:
    """The case of a job with a layout. Where memory does not suffice, gradients are sent in
    buckets, or optimizer states wait in another tier, if that is enough."""
    assert job.layout is not None
    case = case_as_asked(job)
    verdict = case.proved.verdict
    if verdict.sound or not only_over_budget(verdict):
        return case
    others = leaner_jobs(job, case.strategy, replicas=job.layout.data > 1)
    tried = (case_as_asked(leaner) for leaner in others)
    return next((other for other in tried if other.proved.verdict.sound), case)


def require_one_by_one(job: JobSpec) -> None:
    """Refuses stages that join micro-batches: no case of a layout says them (`case_of_job`)."""
    if job.layout is not None and job.layout.joined:
        raise SpecError(
            "layouts whose stages join micro-batches cannot be compared here",
            place=f"{job.path or 'job'} [layout] joined",
            fix="leave joined out; program, verify, simulate, train and report take it",
        )


def case_as_asked(job: JobSpec) -> LayoutCase:
    """The case of a job with a layout: its gradients leave whole, unless it asks for buckets."""
    layout = job.layout
    assert layout is not None
    file = str(job.path or "job")
    require_one_by_one(job)
    chosen = strategy_of(job)
    if job.schedule.name == "tensor-parallel-heavy" and layout.tensor == 1:
        raise SpecError(
            "tensor = 1 is no tensor parallelism, which tensor-parallel-heavy is made for",
            place=f"{file} [layout] tensor",
            fix="set tensor to the devices of a host, and divide pipeline by it",
        )
    if job.schedule.gradient_accumulation == "sharded" and chosen.sharding < 2:
        raise no_shards(job, chosen.sharding)
    require_tieable(job)
    shards = layout.data > 1 and chosen.sharding > 0
    where = f"{file} [layout] tensor" if layout.tensor > 1 else f"{file} [schedule] sharding"
    require_whole(job, tensor=layout.tensor, shards=shards, place=where)
    require_bucketable(job, chosen)
    require_tier(job)
    if layout.virtual > 1 and not SKELETONS[chosen.skeleton].chunks:
        raise SpecError(
            f"{chosen.skeleton} places one stage on a rank, not {layout.virtual}",
            place=f"{file} [layout] virtual",
            fix='leave it out, or set [schedule] skeleton = "interleaved"',
        )
    _require_orderable(job, layout, chosen)
    placement = place(job, layout)
    _require_one_dtype(job, placement)
    setup = setup_of(job, placement, job.schedule.recovery_buffer)
    with named_in(job):
        job, chosen, choices = choose_order(job, chosen, setup, placement)
    return LayoutCase(job, chosen, setup, choices, layout, placement)


@contextmanager
def named_in(job: JobSpec) -> Generator[None]:
    """A program that cannot be made is the fault of a key: its place begins with the job's file."""
    try:
        yield
    except ProgramError as error:
        if not error.place.startswith("["):
            raise
        at = f"{job.path or 'job'} {error.place}"
        raise ProgramError(error.what, place=at, fix=error.fix) from error


def case_of_candidate(candidate: Candidate) -> LayoutCase:
    """The case of a configuration in full: nothing is left to choose."""
    return LayoutCase(
        candidate.job,
        candidate.strategy,
        candidate.setup,
        candidate.choices,
        candidate.layout,
        candidate.placement,
        candidate,
    )


def candidate_of_setup(
    job: JobSpec, placement: Placement, chosen: Strategy, setup: Setup
) -> Candidate:
    """The configuration of a laid out job, as the setup of its program has it."""
    layout = replace(placement.layout, layers=layers_of_stages(job, placement.layout))
    return Candidate(
        replace(job, layout=layout),
        replace(placement, layout=layout),
        chosen,
        tuple(stage.members[0].recovery for stage in setup.replicas[0].stages),
        StateMode(setup.sharding, setup.accumulation is Accumulation.SHARDED),
        setup.recovery_buffer,
    )


def _require_one_dtype(job: JobSpec, placement: Placement) -> None:
    """Refuses a tensor group whose devices compute in different dtypes."""
    layout = placement.layout
    if layout.tensor == 1 or not job.unlike:
        return
    for first in range(0, layout.devices, layout.tensor):
        kinds = {device.kind for device in placement.devices[first : first + layout.tensor]}
        if len({job.dtype_of(kind) for kind in kinds}) > 1:
            names = " and ".join(sorted(kind.name for kind in kinds))
            raise SpecError(
                f"a tensor group has devices of the kinds {names}, which compute in different "
                "dtypes",
                place=f"{job.path or 'job'} [layout] tensor",
                fix="let a tensor group stand on devices of one kind",
            )


def _require_orderable(job: JobSpec, layout: LayoutSpec, chosen: Strategy) -> None:
    """Refuses a number of micro-batches for which the strategy's skeleton has no order."""
    place = Place(0, layout.pipeline, layout.virtual, job.micro_batches)
    fixed = SKELETONS[chosen.skeleton].fixed
    try:
        next(SKELETONS[chosen.skeleton].order(place), None)
    except ProgramError as error:
        if fixed is not None and (fixed.ranks, fixed.chunks) != (place.ranks, place.chunks):
            key = "pipeline" if fixed.ranks != place.ranks else "virtual"
            raise SpecError(
                error.what,
                place=f"{job.path or 'job'} [layout] {key}",
                fix=f"use pipeline = {fixed.ranks} and virtual = {fixed.chunks}",
            ) from None
        raise SpecError(
            error.what,
            place=f"{job.path or 'job'} [batch] sequences",
            fix=f"{error.fix} per replica: {layout.data} x {job.batch.micro_batch} sequences each",
        ) from None
