"""Files of Metis: the ranked list that its planner prints, hosts and what they are, and a layer
profile per GPU, tensor degree and batch.

A line of the list has a data degree and a tensor degree for each stage. A replica of a RATrain plan
is a pipeline of fixed ranks, so plans whose stages have one data degree can be said; others are
refused by their line.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ratrain.convert.converted import (
    Choices,
    Converted,
    Model,
    Theirs,
    layers_of_slots,
    placed,
    plan_for,
)
from ratrain.convert.entries import (
    Conditions,
    Taken,
    entries_of_slots,
    same_kind_of_slot,
)
from ratrain.convert.kinds import device_of, known_kind
from ratrain.convert.machines import Machine, cluster_of
from ratrain.describe.amounts import Count, Name, Sequences, Tokens
from ratrain.describe.cluster import ClusterSpec, DeviceKind, Link
from ratrain.describe.layer_profile import LayerProfile
from ratrain.describe.strict import Rule, load
from ratrain.errors import SpecError
from ratrain.plan.plan_file import Plan, PlanReplica, PlanStage
from ratrain.plan.ranges import write_ranges
from ratrain.readers.files import read_text, shown
from ratrain.readers.json import parse_json, read_json_table
from ratrain.readers.limits import SMALL_BYTES
from ratrain.readers.place import Place

SOURCE = "Metis's"
USUAL = {
    "A100": "a100-80g-dgx",
    "V100": "grolar-v100-16g",
    "P100": "grolar-p100",
    "T4": "t4-deepspeed",
}
Milliseconds = Annotated[float, Rule(low=0, high=1e12)]
Gigabytes = Annotated[float, Rule(low=0.001, high=1e6)]
Rate = Annotated[float, Rule(low=1e-6, high=1e15)]
Slot = Annotated[int, Rule(low=0, high=10_002)]

BYTES_FROM = 1e5
"""Bandwidths at least this large are taken as bytes a second, smaller ones as its example's."""
UNIT_BYTES_PER_S = 1000 * (1 << 20)
"""What its code makes of a bandwidth of 1 while it counts time in ms: 2^20 bytes a ms."""
FORWARD_PART = 1 / 3
_LATENCY_S = 20e-6
_NAME = re.compile(r"DeviceType\.(\w{1,40})_tp(\d{1,6})_bs(\d{1,6})\.json", re.ASCII)
_DEVICE = re.compile(r"<DeviceType\.(\w{1,40}): '[^'<>]{0,40}'>", re.ASCII)
_HOST = re.compile(r"(\S{1,255})\s+(?:slots=)?(\d{1,6})", re.ASCII)
_RANKED = re.compile(r"\s*\d{1,9}\s*,")


@dataclass(frozen=True)
class HostType:
    """What a host of `clusterfile.json` is; memory in GiB."""

    instance_type: Name
    inter_bandwidth: Rate
    intra_bandwidth: Rate
    memory: Gigabytes


@dataclass(frozen=True)
class Ranked:
    """One line of the list that its planner prints."""

    rank: Count
    cost: Milliseconds
    node_sequence: tuple[Name, ...]
    device_groups: tuple[Count, ...]
    strategies: tuple[tuple[Count, ...], ...]
    batches: Count
    layer_partition: tuple[Slot, ...]


@dataclass(frozen=True)
class ExecutionTime:
    layer_compute_total_ms: tuple[Milliseconds, ...]
    optimizer_time_ms: Milliseconds


@dataclass(frozen=True)
class Parameters:
    parameters_per_layer_bytes: tuple[Annotated[int, Rule(low=0, high=1 << 53)], ...]


@dataclass(frozen=True)
class ProfiledModel:
    parameters: Parameters


@dataclass(frozen=True)
class Profile:
    """A `DeviceType.*_tp*_bs*.json`."""

    model: ProfiledModel
    execution_time: ExecutionTime


@dataclass(frozen=True)
class Workload:
    """What Metis takes on its command line, and its files lack."""

    sequence_length: Tokens
    sequences: Sequences | None
    dtype: str


@dataclass(frozen=True)
class Files:
    """What the user gave. `rank`: which line of the list."""

    hosts: Path
    cluster: Path
    plan: Path | None = None
    rank: int = 1
    profiles: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Node:
    """A host with its GPUs, at its line."""

    name: str
    gpus: int
    about: HostType


def convert(files: Files, model: Model, workload: Workload, likes: Mapping[str, str]) -> Converted:
    """The cluster and, where one is given, the plan of these files."""
    differs: list[str] = []
    nodes = _nodes(files)
    ranked, place = None, Place()
    if files.plan is not None:
        ranked, place = _ranked(files.plan, files.rank)
        nodes = _in_sequence(nodes, ranked, place)
    entries = _entries(files.profiles, model, workload, differs)
    cluster = _cluster(nodes, files, entries, likes, model, differs)
    if ranked is None:
        return Converted(cluster, None, None, tuple(differs))
    types = [node.about.instance_type for node in nodes for _ in range(node.gpus)]
    plan = _plan(ranked, place, types, model, workload, differs)
    return Converted(cluster, plan, Theirs(ranked.cost / 1e3, "predicted"), tuple(differs))


# ---- hosts and cluster ------------------------------------------------------------------


def _nodes(files: Files) -> list[Node]:
    """The hosts in the host file's order."""
    table, place = read_json_table(files.cluster)
    about = {
        name: load(HostType, _object(value, place.at(name)), place.at(name), strict=False)
        for name, value in table.items()
    }
    nodes: list[Node] = []
    text = read_text(files.hosts, SMALL_BYTES)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        here = f"{files.hosts}:{number}"
        found = _HOST.fullmatch(line.strip())
        if found is None or not 0 < int(found[2]) <= 1024:
            raise SpecError(
                f"{shown(line.strip())} is not a host with its GPUs",
                place=here,
                fix="write it like 10.0.0.1 slots=8",
            )
        if found[1] not in about:
            raise SpecError(
                f"the host {shown(found[1])} is not in {files.cluster}",
                place=here,
                fix=f"add it there, with its instance_type, memory and bandwidths; it has "
                f"{', '.join(list(about)[:8]) or 'none'}",
            )
        nodes.append(Node(found[1], int(found[2]), about[found[1]]))
    if not nodes:
        raise SpecError("no hosts", place=str(files.hosts), fix="write 10.0.0.1 slots=8")
    return nodes


def _object(value: Any, place: Place) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpecError(
            f"{shown(value, 40)} is not an object", place=str(place), fix="write an object"
        )
    return value


def _in_sequence(nodes: list[Node], ranked: Ranked, place: Place) -> list[Node]:
    """Hosts as the plan numbers their GPUs: by kind, in the order of its node sequence."""
    order = {name: number for number, name in enumerate(ranked.node_sequence)}
    for node in nodes:
        if node.about.instance_type not in order:
            raise SpecError(
                f"the plan has no {node.about.instance_type}, which host {node.name} is",
                place=str(place),
                fix="give the host file that the plan was made for",
            )
    return sorted(nodes, key=lambda node: order[node.about.instance_type])


def _cluster(
    nodes: list[Node],
    files: Files,
    entries: Mapping[str, tuple[LayerProfile, ...]],
    likes: Mapping[str, str],
    model: Model,
    differs: list[str],
) -> ClusterSpec:
    place = str(files.cluster)
    kinds: dict[str, DeviceKind] = {}
    for node in nodes:
        kind, memory = node.about.instance_type, int(node.about.memory * (1 << 30))
        here = f"{place} [{node.name}]"
        if kind not in kinds:
            known = known_kind(kind, likes, USUAL, f"{here} instance_type")
            kinds[kind] = device_of(kind, known, (memory, place), entries.get(kind, ()), model.spec)
            differs.append(
                f"{kind}: layers, embedding, head and updates are as measured there; memory "
                f"bandwidth follows from {known.name}"
                if kind in entries
                else f"{kind}: its layer times are not given, so all times follow from {known.name}"
            )
        elif kinds[kind].memory.capacity_bytes != memory:
            raise SpecError(
                f"{kind} has two sizes of memory",
                place=f"{here} memory",
                fix="give GPUs of unequal memory unequal names",
            )
    differs.append(
        "links are between hosts as inter_bandwidth says; Metis's own code reads intra_bandwidth "
        "for both. Latency is not in its files: 20 us are assumed"
    )
    if any(node.about.inter_bandwidth < BYTES_FROM for node in nodes):
        differs.append(
            "a bandwidth of 1 is 2^20 bytes a millisecond, as its code counts with; its files do "
            "not say the unit"
        )
    machines = [
        Machine(
            node.name,
            (node.about.instance_type,) * node.gpus,
            _link(node.about.intra_bandwidth, place),
            _link(node.about.inter_bandwidth, place),
        )
        for node in nodes
    ]
    with placed(place):
        return cluster_of("converted", f"{SOURCE} {place}", tuple(kinds.values()), machines)


def _link(bandwidth: float, file: str) -> Link:
    rate = bandwidth if bandwidth >= BYTES_FROM else bandwidth * UNIT_BYTES_PER_S
    return Link(_LATENCY_S, rate, f"bandwidth: {SOURCE} {file}; latency: assumed")


# ---- profiles ---------------------------------------------------------------------------


def _entries(
    paths: Iterable[Path], model: Model, workload: Workload, differs: list[str]
) -> dict[str, tuple[LayerProfile, ...]]:
    """The entries of each kind, one set for each tensor degree."""
    taken: dict[tuple[str, int], dict[int, list[Taken]]] = defaultdict(dict)
    for path in paths:
        kind, tensor, size = _conditions(path)
        taken[kind, tensor][size] = _slots(path)
    if not taken:
        return {}
    differs.append(
        "a layer's time is forward and backward together there: a third is taken as forward; its "
        "memory figures are not used, since RATrain counts states itself"
    )
    worst = max(same_kind_of_slot(by_size) for by_size in taken.values())
    if worst > 0.01:
        differs.append(
            f"layers of one measurement differ by up to {worst:.0%} from their median, which is "
            "taken for all"
        )
    entries: dict[str, list[LayerProfile]] = defaultdict(list)
    for (kind, tensor), by_size in taken.items():
        source = f"{SOURCE} DeviceType.{kind}_tp{tensor}_bs*.json"
        about = Conditions(model.spec, workload.sequence_length, tensor, workload.dtype, source)
        with placed(source):
            entries[kind] += entries_of_slots(by_size, about)
    return {kind: tuple(found) for kind, found in entries.items()}


def _conditions(path: Path) -> tuple[str, int, int]:
    """Kind, tensor degree and batch, which its file's name says."""
    found = _NAME.fullmatch(path.name)
    if found is None or not int(found[2]) or not int(found[3]):
        raise SpecError(
            f"{shown(path.name)} does not say GPU, tensor degree and batch",
            place=str(path),
            fix="name it like DeviceType.A100_tp1_bs4.json",
        )
    return found[1], int(found[2]), int(found[3])


def _slots(path: Path) -> list[Taken]:
    """What each slot took, with its part of the optimizer's time by its parameters."""
    table, place = read_json_table(path)
    profile = load(Profile, table, place, strict=False)
    times = profile.execution_time.layer_compute_total_ms
    params = profile.model.parameters.parameters_per_layer_bytes
    if len(times) < 3 or len(params) != len(times):
        raise SpecError(
            f"{len(times)} layer times and {len(params)} parameter counts",
            place=str(place.at("execution_time", "layer_compute_total_ms")),
            fix="give one of each for embedding, every layer and head",
        )
    for number, time_ms in enumerate(times):
        if time_ms <= 0:
            raise SpecError(
                f"slot {number} takes 0 ms",
                place=str(place.at("execution_time", "layer_compute_total_ms", number)),
                fix="give a time above 0",
            )
    whole_ms, all_params = profile.execution_time.optimizer_time_ms, sum(params) or 1
    return [
        Taken(
            time_ms / 1e3 * FORWARD_PART,
            time_ms / 1e3 * (1 - FORWARD_PART),
            whole_ms / 1e3 * count / all_params,
        )
        for time_ms, count in zip(times, params, strict=True)
    ]


# ---- the plan ---------------------------------------------------------------------------


def _ranked(path: Path, rank: int) -> tuple[Ranked, Place]:
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


def _plan(
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
        stages.append(PlanStage(devices, tensor, layers[number], size, "none", 0))
        first += group
    if mixed:
        differs.append(
            "replicas on unequal GPUs of one stage get equal shares here; Metis gives the slower "
            "ones fewer sequences of every micro-batch, which its list does not print"
        )
    differs.append(
        "its time adds the whole optimizer twice over, and compares memory with its measured "
        "figures; schedule and recovery are not in its list: 1F1B that keeps activations"
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
                "micro-batches are divided anew between stages there, while a replica of a RATrain "
                "plan is a pipeline of fixed ranks",
                place=str(place.at("strategies", number)),
                fix="give --rank of a plan whose stages have one data degree",
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
                fix="give --rank of a plan whose tensor groups are of one kind",
            )
