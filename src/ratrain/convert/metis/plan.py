"""A line of Metis's ranked list as a plan."""

from __future__ import annotations

import re
from pathlib import Path

from ratrain.convert.converted import (
    Choices,
    Model,
    layers_of_slots,
    plan_for,
)
from ratrain.convert.metis.files import (
    Ranked,
    Workload,
)
from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.plan.plan_file import Plan, PlanReplica, PlanStage
from ratrain.plan.ranges import write_ranges
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
) -> Plan:
    data = _data_degree(ranked, place, len(types))
    sequences = workload.sequences
    if sequences is None:
        raise SpecError(
            "the plan does not say its global batch", place="--sequences", fix="add --sequences N"
        )
    size, rest = divmod(sequences, data * ranked.batches)
    if rest or not size:
        raise SpecError(
            f"{sequences} sequences are not {ranked.batches} micro-batches of {data} replicas",
            place=str(place.at("batches")),
            fix=f"give --sequences as a multiple of {data * ranked.batches}",
        )
    bounds = list(zip(ranked.layer_partition, ranked.layer_partition[1:], strict=False))
    layers = layers_of_slots(bounds, model, place.at("layer_partition"))
    stages: list[PlanStage] = []
    first = 0
    mixed = False
    for number, group in enumerate(ranked.device_groups):
        tensor = ranked.strategies[number][1]
        _require_kinds(types, first, group, tensor, place.at("strategies", number))
        mixed |= len(set(types[first : first + group])) > 1
        devices = write_ranges(range(first, first + group))
        stages.append(
            PlanStage(
                devices=devices,
                tensor=tensor,
                layers=layers[number],
                micro_batch=size,
                recovery="none",
                sharding=0,
            )
        )
        first += group
    if mixed:
        differs.append(
            "replicas on unequal GPUs of one stage get equal shares here; Metis gives the slower "
            "ones fewer sequences of every micro-batch, which its list does not print"
        )
    differs.append(
        "its time counts the optimizer twice; schedule and recovery are not in its list: 1F1B that "
        "keeps activations, optimizer not sharded"
    )
    choices = Choices("1f1b", sequences, workload.sequence_length, workload.dtype)
    return plan_for(model, len(types), choices, (PlanReplica(data, ranked.batches, tuple(stages)),))


def _data_degree(ranked: Ranked, place: Place, devices: int) -> int:
    """The data degree, which all stages must share."""
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
        if degrees[0] != strategies[0][0]:
            raise SpecError(
                f"data degree {degrees[0]} on stage {number}, {strategies[0][0]} on stage 0: "
                "Metis divides micro-batches anew between such stages, while a replica of a "
                "RATrain plan is a pipeline of fixed ranks",
                place=str(place.at("strategies", number)),
                fix="choose with --rank a plan whose stages all have the same data degree",
            )
    return strategies[0][0]


def _require_kinds(types: list[str], first: int, group: int, tensor: int, place: Place) -> None:
    for start in range(first, first + group, tensor):
        kinds = set(types[start : start + tensor])
        if len(kinds) > 1:
            raise SpecError(
                f"the tensor group of GPUs {start} to {start + tensor - 1} is of "
                f"{' and '.join(sorted(kinds))}",
                place=str(place),
                fix="choose with --rank a plan whose tensor groups each have one kind of GPU",
            )
