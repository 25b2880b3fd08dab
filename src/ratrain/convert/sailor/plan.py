"""Sailor's stages of tensor groups as replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ratrain.convert.converted import (
    Choices,
    Model,
    layers_of_slots,
    list_of,
    object_of,
    plan_for,
)
from ratrain.convert.sailor.files import (
    Files,
    Group,
    NodeType,
    SailorPlan,
    Training,
)
from ratrain.convert.sailor.hosts import Seats
from ratrain.describe.ranges import write_ranges
from ratrain.describe.strict import load, nearest
from ratrain.errors import SpecError
from ratrain.plan.file import PlanFile, PlanReplica, PlanStage
from ratrain.readers.files import shown
from ratrain.readers.json import read_json
from ratrain.readers.place import Place


def read_plan(files: Files) -> tuple[SailorPlan, Place]:
    """The plan of a file that holds one, or a list of them."""
    assert files.plan is not None
    value, place = read_json(files.plan)
    if isinstance(value, list):
        plans = cast("list[Any]", value)
        if files.rank > len(plans):
            raise SpecError(
                f"it has no plan of rank {files.rank}; it has {len(plans)}",
                place=str(place),
                fix=f"give --rank 1 to {len(plans)}" if plans else "give a file with a plan",
            )
        value, place = plans[files.rank - 1], place.at(files.rank - 1)
    plan = load(SailorPlan, object_of(value, place), place, strict=False)
    if len(plan.pipeline_list) != 1:
        raise SpecError(
            f"{len(plan.pipeline_list)} pipelines: how they divide the batch is not in the file",
            place=str(place.at("pipeline_list")),
            fix="give a plan of one pipeline with its replicas",
        )
    return plan, place


def tensor_groups(
    plan: SailorPlan, types: Mapping[str, NodeType], place: Place
) -> list[list[Group]]:
    """The tensor groups of each stage, one for each replica."""
    (pipeline,) = plan.pipeline_list
    here = place.at("pipeline_list", 0, "tmp_per_stage")
    stages = pipeline.tmp_per_stage
    if not stages or len(stages) != len(pipeline.layers_per_stage):
        raise SpecError(
            f"{len(stages)} stages of GPUs, {len(pipeline.layers_per_stage)} of layers",
            place=str(here),
            fix="give both for every stage",
        )
    read: list[list[Group]] = []
    for number, stage in enumerate(stages):
        at = here.at(number)
        replicas = list_of(stage)
        if not 0 < len(replicas) <= 100_000:
            raise SpecError(
                f"{shown(stage, 40)} are not the replicas of a stage",
                place=str(at),
                fix="write [[[[GPU, count, zone]], degree], ...]",
            )
        read.append([_group(replica, types, at.at(i)) for i, replica in enumerate(replicas)])
        if len(read[-1]) != len(read[0]):
            raise SpecError(
                f"{len(read[-1])} replicas, {len(read[0])} on the first stage: a replica of a "
                "RATrain plan is a pipeline of fixed ranks",
                place=str(at),
                fix="give a plan whose stages all have the same data degree",
            )
    return read


def _group(value: Any, types: Mapping[str, NodeType], place: Place) -> Group:
    fix = "write [[[GPU, count, zone]], degree]"
    pair = list_of(value)
    parts = list_of(pair[0]) if len(pair) == 2 else []
    if not parts:
        raise SpecError(f"{shown(value, 60)} is not a tensor group", place=str(place), fix=fix)
    if len(parts) != 1:
        raise SpecError(
            f"a tensor group of {len(parts)} kinds of GPU or zones",
            place=str(place.at(0)),
            fix="give a plan whose tensor groups each have one kind of GPU in one zone",
        )
    part = list_of(parts[0])
    if (
        len(part) != 3
        or not isinstance(part[0], str)
        or not isinstance(part[2], str)
        or not all(type(n) is int and 0 < n <= 1024 for n in (part[1], pair[1]))
        or part[1] != pair[1]
        or not (part[2].strip() and part[2].isprintable() and len(part[2]) <= 100)
    ):
        raise SpecError(
            f"{shown(value, 80)} is not a tensor group, or its count is not its degree",
            place=str(place),
            fix=fix,
        )
    if part[0] not in types:
        raise SpecError(
            f"the GPU {shown(part[0])} is not in the cluster's file",
            place=str(place.at(0, 0, 0)),
            fix=nearest(part[0], types),
        )
    return Group(part[0], part[2], pair[1])


def plan_of(
    read: SailorPlan,
    place: Place,
    training: Training,
    model: Model,
    groups: list[list[Group]],
    seats: Seats,
    dtype: str,
    differs: list[str],
) -> PlanFile:
    (pipeline,) = read.pipeline_list
    here = place.at("pipeline_list", 0)
    bounds = [
        _run(stage, here.at("layers_per_stage", n))
        for n, stage in enumerate(pipeline.layers_per_stage)
    ]
    layers = layers_of_slots(bounds, model, here.at("layers_per_stage"))
    sequences = read.gbs or training.global_batch_size
    data = len(groups[0])
    shares = _shares(sequences, read.mbs, data, place, differs)
    entries: dict[tuple[object, ...], list[int]] = {}
    for replica in range(data):
        key = (shares[replica], *(stage[replica] for stage in groups))
        entries.setdefault(key, []).append(replica)
    replicas = tuple(
        PlanReplica(
            len(members),
            shares[members[0]],
            tuple(
                PlanStage(
                    devices=write_ranges(
                        [
                            device
                            for member in members
                            for device in range(
                                seats.first[n][member],
                                seats.first[n][member] + groups[n][member].tensor,
                            )
                        ]
                    ),
                    tensor=groups[n][members[0]].tensor,
                    layers=stage_layers,
                    micro_batch=read.mbs,
                    recovery="none",
                    sharding=0,
                )
                for n, stage_layers in enumerate(layers)
            ),
        )
        for members in entries.values()
    )
    differs.append(
        "schedule and recovery are not in its plan: 1F1B that keeps activations, optimizer not "
        "sharded, as its runtime does; its memory formula (20 bytes per parameter and 5.06 GB) is "
        "replaced by RATrain's own count"
    )
    choices = Choices("1f1b", sequences, training.sequence_length, dtype)
    return plan_for(model, seats.devices, choices, replicas)


def _run(slots: tuple[int, ...], place: Place) -> tuple[int, int]:
    if not slots or list(slots) != list(range(slots[0], slots[0] + len(slots))):
        raise SpecError(
            f"slots {shown(list(slots), 60)} are not consecutive",
            place=str(place),
            fix="give each stage consecutive slots",
        )
    return slots[0], slots[-1] + 1


def _shares(sequences: int, size: int, data: int, place: Place, differs: list[str]) -> list[int]:
    """Micro-batches of each replica; what is left over goes to the first ones."""
    micro_batches, rest = divmod(sequences, size)
    if rest or micro_batches < data:
        raise SpecError(
            f"{sequences} sequences are not micro-batches of {size} for {data} replicas",
            place=str(place.at("mbs")),
            fix=f"use a batch that {size} divides, of at least {size * data} sequences",
        )
    each, left = divmod(micro_batches, data)
    if left:
        differs.append(
            f"{micro_batches} micro-batches, {data} replicas: the first {left} take {each + 1}, "
            f"the others {each}; Sailor prices {each + 1} for all, more than the batch has"
        )
    return [each + (replica < left) for replica in range(data)]
