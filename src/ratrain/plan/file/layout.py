"""The candidate of a plan whose replicas are divided alike, so that a layout says it all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ratrain.describe.cluster import Device
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.errors import SpecError
from ratrain.plan.file.form import (
    Plan,
    PlanStage,
)
from ratrain.plan.file.job import (
    job_of_plan,
    require_buckets,
    require_chunks,
    require_order,
    require_prefetch,
    require_round,
    require_strategy,
    state_mode,
)
from ratrain.plan.file.members import devices_of_stage
from ratrain.plan.layout.candidate import Candidate
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.placement import Placement
from ratrain.program.replicas import Recovery
from ratrain.program.skeletons import Place as Position
from ratrain.readers.place import Place


def to_candidate(plan: Plan, file: str, planned_for: JobSpec | None = None) -> Candidate:
    """The candidate that a plan of replicas divided alike describes. Raises a SpecError for what
    cannot run, or not yet. `planned_for`: the job that it was planned for, where that is known."""
    place = Place(file)
    require_strategy(plan, place)
    stages = _stages(plan, place)
    tensor, size = stages[0].only.tensor, stages[0].micro_batch
    groups = [_devices_of(plan, stage, place) for stage in range(len(stages))]
    pipeline = len(dict.fromkeys(map(tuple, groups)))
    data = sum(replica.count for replica in plan.replicas)
    require_round(groups, pipeline, place.at("replicas").at(0))
    layers = tuple(stage.layers for stage in stages)
    layout = LayoutSpec(
        pipeline, data, tensor, len(stages) // pipeline, layers, plan.sequence_parallel
    )
    if planned_for is None:
        job = _job_of_layout(plan, layout, size, place)
    else:
        job = job_of_plan(plan, layout, size, place, planned_for)
    _check_devices(groups[:pipeline], place)
    _check_counts(plan, job, place)
    chosen = strategy_of(job)
    require_prefetch(plan, chosen, place)
    members = job.cluster.members()
    order: tuple[Device, ...] = tuple(members[i] for group in groups[:pipeline] for i in group)
    mode = state_mode(plan, place)
    require_buckets(plan, job, replace(chosen, sharding=mode.sharding), place)
    if len(stages) > pipeline:
        require_chunks(chosen, place.at("replicas"))
    position = Position(0, pipeline, len(stages) // pipeline, job.micro_batches)
    require_order(chosen, position, place.at("replicas").at(0).at("micro_batches"))
    return Candidate(
        job,
        Placement(job.cluster.spec, layout, order),
        replace(chosen, sharding=mode.sharding),
        tuple(Recovery(stage.only.recovery) for stage in stages),
        mode,
        plan.recovery_buffer,
    )


def _job_of_layout(plan: Plan, layout: LayoutSpec, size: int, place: Place) -> JobSpec:
    """The job that a plan of a layout is about: checked as one on the devices that the plan names,
    where it leaves others idle."""
    used = min(layout.devices, plan.cluster.devices)
    named = replace(plan, cluster=replace(plan.cluster, devices=used))
    job = job_of_plan(named, layout, size, place)
    return replace(job, cluster=replace(job.cluster, devices=plan.cluster.devices))


def _stages(plan: Plan, place: Place) -> tuple[PlanStage, ...]:
    """The stages of every replica: `is_uneven` has compared them, but for what it leaves out."""
    here = place.at("replicas")
    if not plan.replicas or not plan.replicas[0].stages:
        raise SpecError("no stages", place=str(here), fix="give one replica with one stage")
    first = plan.replicas[0].stages
    for number, replica in enumerate(plan.replicas):
        for index, stage in enumerate(replica.stages):
            at = here.at(number).at("stages").at(index)
            if stage.sharding != first[0].sharding:
                raise SpecError(
                    f"sharding {stage.sharding} here, {first[0].sharding} on the first stage: "
                    "unequal stages cannot run yet",
                    place=str(at.at("sharding")),
                    fix=f"write {first[0].sharding}",
                )
            if stage.offload is not None:
                raise SpecError(
                    f"offload to {stage.offload!r} cannot run yet",
                    place=str(at.at("offload")),
                    fix="leave it out",
                )
    return first


def _devices_of(plan: Plan, stage: int, place: Place) -> list[int]:
    """A stage's devices over all replicas, replica by replica."""
    return [
        device
        for number in range(len(plan.replicas))
        for device in devices_of_stage(plan, number, stage, place)
    ]


def _check_devices(groups: Sequence[Sequence[int]], place: Place) -> None:
    counts = Counter(device for group in groups for device in group)
    twice = [device for device, count in counts.items() if count > 1]
    if twice:
        raise SpecError(
            f"device {twice[0]} is in two stages",
            place=str(place.at("replicas")),
            fix="list each device once",
        )


def _check_counts(plan: Plan, job: JobSpec, place: Place) -> None:
    for number, replica in enumerate(plan.replicas):
        if replica.micro_batches != job.micro_batches:
            raise SpecError(
                f"{replica.micro_batches} micro-batches, but {plan.sequences} sequences over "
                f"{sum(r.count for r in plan.replicas)} replicas make {job.micro_batches}",
                place=str(place.at("replicas").at(number).at("micro_batches")),
                fix=f"write {job.micro_batches}",
            )
