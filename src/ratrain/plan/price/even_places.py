"""The units of a layout in their places: all replicas divided alike."""

from __future__ import annotations

from functools import cache

from ratrain.cost.compute import BlockTimes, reduced_bytes_per_param
from ratrain.describe.job import JobSpec
from ratrain.plan.layout.compute_times import placed_times
from ratrain.plan.layout.gradient_groups import data_half
from ratrain.plan.layout.placement import Placement, ReplicaClass
from ratrain.plan.layout.sizes import (
    blocks_of_stages,
    boundary_bytes,
    gathered_bytes_per_param,
    held_params,
    sent_boundary_bytes,
    trained_params,
)
from ratrain.plan.layout.transfers import stage_message
from ratrain.plan.layout.unit_place import DataGroup, OtherEnd, StageMessage, UnitPlace
from ratrain.program.replicas import Recovery
from ratrain.program.setup import Setup


def even_places(job: JobSpec, placement: Placement, setup: Setup) -> list[UnitPlace]:
    """Every unit of the setup in its place, in the order of the setup's members."""

    @cache
    def group(pipeline: int) -> DataGroup | None:
        if placement.layout.data == 1:
            return None
        half = data_half(job, placement, pipeline)
        return DataGroup(half, placement.data_link(pipeline), half.chosen)

    places: list[UnitPlace] = []
    for number, alike in enumerate(placement.classes):
        groups = [group(pipeline) for pipeline in range(placement.layout.pipeline)]
        places += _places_of_class(job, placement, setup, number, alike, groups)
    return places


def _places_of_class(
    job: JobSpec,
    placement: Placement,
    setup: Setup,
    number: int,
    alike: ReplicaClass,
    groups: list[DataGroup | None],
) -> list[UnitPlace]:
    layout, base = placement.layout, setup.first_rank[number]
    stages = blocks_of_stages(job, layout)
    rank_of = [number % layout.pipeline for number in range(len(stages))]

    def neighbour(source: int, target: int) -> tuple[StageMessage, ...]:
        if not 0 <= target < len(stages) or rank_of[source] == rank_of[target]:
            return ()
        here, there = rank_of[source], rank_of[target]
        link = placement.stage_link(here, there, alike.members)
        kind = placement.kind(alike.kinds[here])
        whole = job.backend.whole_sends
        message = stage_message(sent, link, kind, placement, there, whole=whole)
        return (StageMessage(base + there, link, message),)

    def other_end(pipeline: int) -> OtherEnd | None:
        last = layout.pipeline - 1
        if not setup.tied or not last or pipeline not in (0, last):
            return None
        other = last - pipeline
        link = placement.stage_link(pipeline, other, alike.members)
        return OtherEnd(base + other, link, layout.tensor)

    sent = sent_boundary_bytes(job)
    places: list[UnitPlace] = []
    known: dict[tuple[int, object, bool], BlockTimes] = {}
    view_bytes = [
        gathered_bytes_per_param(job, {placement.kind(name) for name in names})
        for names in zip(*(each.kinds for each in placement.classes), strict=True)
    ]
    for stage, parts in enumerate(stages):
        pipeline = rank_of[stage]
        kind = placement.kind(alike.kinds[pipeline])
        boundary = boundary_bytes(job.of_kind(kind))
        previous, following = neighbour(stage, stage - 1), neighbour(stage, stage + 1)
        end = other_end(pipeline)
        mode = setup.replicas[number].stages[stage].only.recovery
        selective = mode is Recovery.SELECTIVE
        reduced = reduced_bytes_per_param(kind, job.schedule.dtype, job.schedule.gradient_wire)
        for block in parts:
            params = trained_params(job, block, layout.pipeline) / layout.tensor
            gathered = params
            if setup.sharding == 3:  # views, of all parameters
                gathered = held_params(job, block, layout.pipeline) / layout.tensor
            key = (pipeline, block.sort, selective)
            if key not in known:
                known[key] = placed_times(
                    job, placement, block, kind, pipeline, selective=selective
                )
            places.append(
                UnitPlace(
                    rank=base + pipeline,
                    kind=block.kind,
                    device=kind,
                    layout=layout,
                    times=known[key],
                    params=params,
                    view_bytes=view_bytes[pipeline] * gathered,
                    reduced_bytes=reduced * params,
                    boundary_bytes=boundary,
                    previous=previous,
                    following=following,
                    sums_link=placement.tensor_link(pipeline) if layout.tensor > 1 else None,
                    group=groups[pipeline],
                    other_end=end,
                    holders=layout.data,
                )
            )
    return places
