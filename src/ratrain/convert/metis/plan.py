"""A line of Metis's ranked list as a plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import lcm
from pathlib import Path

from ratrain.convert.converted import (
    Choices,
    Model,
    layers_of_slots,
    plan_for,
)
from ratrain.convert.member_stages import member_stage
from ratrain.convert.metis.files import (
    Ranked,
    Workload,
)
from ratrain.describe.ranges import write_ranges
from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.plan.file import PlanFile, PlanReplica, PlanStage
from ratrain.readers.files import read_text
from ratrain.readers.json import parse_json
from ratrain.readers.place import Place

_RANKED = re.compile(r"\s*\d{1,9}\s*,")
_DEVICE = re.compile(r"<DeviceType\.(\w{1,40}): '[^'<>]{0,40}'>", re.ASCII)


def ranked_plan(path: Path, rank: int) -> tuple[Ranked, Place]:
    """The line of that rank, with its place."""
    lines = read_text(path).splitlines()
    first = None
    ranks = 0
    for number, line in enumerate(lines, 1):
        if not _RANKED.match(line) or "<DeviceType." not in line:
            continue
        ranks += 1
        first = first or number
        if int(line.partition(",")[0]) == rank:
            return _read(line, f"{path}:{number}")
    raise SpecError(
        f"it has no plan of rank {rank}; it has {ranks}"
        if first
        else "it has no line like 1, 2396.7, (<DeviceType.T4: 't4'>, ...), [8, 8], ...",
        place=str(path),
        fix=f"give --rank 1 to {ranks}" if first else "give what cost_het_cluster.py prints",
    )


def _read(line: str, here: str) -> tuple[Ranked, Place]:
    """A line of Python's values as JSON: tuples are lists, kinds are names."""
    text = _DEVICE.sub(r'"\1"', line).replace("(", "[").replace(")", "]")
    text = re.sub(r",\s*\]", "]", text)
    place = Place(here)
    value, _ = parse_json(f"[{text}]", here)
    names = ("rank", "cost", "node_sequence", "device_groups", "strategies", "batches")
    keys = (*names, "layer_partition")
    if len(value) != len(keys):
        raise SpecError(
            f"{len(value)} values on the line",
            place=here,
            fix=f"give {', '.join(keys)}",
        )
    return load(Ranked, dict(zip(keys, value, strict=True)), place), place


def plan_of(
    ranked: Ranked,
    place: Place,
    types: list[str],
    model: Model,
    workload: Workload,
    differs: list[str],
) -> PlanFile:
    degrees = _data_degrees(ranked, place, len(types))
    pieces = lcm(*degrees)
    sequences = workload.sequences
    if sequences is None:
        raise SpecError(
            "the plan does not say its global batch", place="--sequences", fix="add --sequences N"
        )
    size, rest = divmod(sequences, pieces * ranked.batches)
    if rest or not size:
        raise SpecError(
            f"{sequences} sequences are not {ranked.batches} micro-batches of {pieces} parts",
            place=str(place.at("batches")),
            fix=f"give --sequences as a multiple of {pieces * ranked.batches}",
        )
    bounds = list(zip(ranked.layer_partition, ranked.layer_partition[1:], strict=False))
    layers = layers_of_slots(bounds, model, place.at("layer_partition"))
    groups = _tensor_groups(ranked, types, place)
    if len(set(degrees)) == 1:
        replica = _replicas(groups, layers, ranked.batches, size)
    else:
        replica = _shared_replica(groups, layers, ranked.batches, pieces, size)
        differs.append(_pieces_said(degrees, pieces, size))
    mixed = any(len({types[gpus[0]] for gpus in stage}) > 1 for stage in groups)
    if mixed:
        differs.append(
            "unequal GPUs of one stage get equal shares here; Metis gives the slower "
            "ones fewer sequences of every micro-batch, which its list does not print"
        )
    differs.append(
        "its time counts the optimizer twice; schedule and recovery are not in its list: 1F1B that "
        "keeps activations, optimizer not sharded"
    )
    choices = Choices("1f1b", sequences, workload.sequence_length, workload.dtype)
    return plan_for(model, len(types), choices, (replica,))


Groups = Sequence[Sequence[range]]
"""For each stage its tensor groups of GPUs."""


def _tensor_groups(ranked: Ranked, types: list[str], place: Place) -> Groups:
    """The tensor groups of each stage, each of one kind of GPU."""
    stages: list[list[range]] = []
    first = 0
    for number, group in enumerate(ranked.device_groups):
        tensor = ranked.strategies[number][1]
        end = first + group
        stages.append([range(start, start + tensor) for start in range(first, end, tensor)])
        for gpus in stages[-1]:
            _require_kind(types, gpus, place.at("strategies", number))
        first = end
    return stages


def _replicas(groups: Groups, layers: Sequence[int], batches: int, size: int) -> PlanReplica:
    """All stages have the same data degree: the i-th tensor groups of all are a pipeline."""
    stages = tuple(
        PlanStage(
            devices=write_ranges(range(stage[0].start, stage[-1].stop)),
            tensor=len(stage[0]),
            layers=stage_layers,
            micro_batch=size,
            recovery="none",
            sharding=0,
        )
        for stage, stage_layers in zip(groups, layers, strict=True)
    )
    return PlanReplica(len(groups[0]), batches, stages)


def _shared_replica(
    groups: Groups, layers: Sequence[int], batches: int, pieces: int, size: int
) -> PlanReplica:
    """Stages divide a micro-batch into as many parts as they have tensor groups: one pipeline of
    pieces that are parts of all of them, each stage with its tensor groups as members."""
    stages = tuple(
        member_stage(
            stage,
            [_parts(number, len(stage), batches, pieces) for number in range(len(stage))],
            layers=stage_layers,
            micro_batch=size,
            recovery="none",
            sharding=0,
        )
        for stage, stage_layers in zip(groups, layers, strict=True)
    )
    return PlanReplica(1, batches * pieces, stages)


def _parts(number: int, data: int, batches: int, pieces: int) -> list[int]:
    """The pieces of every micro-batch that the member of this number computes."""
    theirs = range(number * pieces // data, (number + 1) * pieces // data)
    return [batch * pieces + piece for batch in range(batches) for piece in theirs]


def _pieces_said(degrees: Sequence[int], pieces: int, size: int) -> str:
    computed = ", ".join(
        f"{pieces // data} x {size} in place of {pieces // data * size}"
        for data in sorted({data for data in degrees if data < pieces})
    )
    return (
        f"data degrees {', '.join(map(str, degrees))}: every micro-batch goes through all stages "
        f"as {pieces} of {size} sequence{'s' * (size > 1)}, so stages of a smaller degree compute "
        f"{computed} sequences at once"
    )


def _data_degrees(ranked: Ranked, place: Place, devices: int) -> list[int]:
    """The data degree of each stage."""
    groups, strategies = ranked.device_groups, ranked.strategies
    if (
        not groups
        or len(strategies) != len(groups)
        or len(ranked.layer_partition) != 1 + len(groups)
    ):
        raise SpecError(
            f"{len(groups)} device groups, {len(strategies)} strategies and "
            f"{len(ranked.layer_partition)} layer boundaries",
            place=str(place),
            fix="give one strategy for each group, and one boundary more",
        )
    if sum(groups) != devices:
        raise SpecError(
            f"the groups have {sum(groups)} GPUs, the hosts {devices}",
            place=str(place.at("device_groups")),
            fix="give the host file that the plan was made for",
        )
    for number, (group, degrees) in enumerate(zip(groups, strategies, strict=True)):
        if len(degrees) != 2 or degrees[0] * degrees[1] != group:
            raise SpecError(
                f"degrees {' x '.join(map(str, degrees))} for {group} GPUs",
                place=str(place.at("strategies", number)),
                fix="give data and tensor degree whose product is the group",
            )
    return [data for data, _ in strategies]


def _require_kind(types: list[str], gpus: range, place: Place) -> None:
    kinds = set(types[gpus.start : gpus.stop])
    if len(kinds) > 1:
        raise SpecError(
            f"the tensor group of GPUs {gpus.start} to {gpus.stop - 1} is of "
            f"{' and '.join(sorted(kinds))}",
            place=str(place),
            fix="choose with --rank a plan whose tensor groups each have one kind of GPU",
        )
