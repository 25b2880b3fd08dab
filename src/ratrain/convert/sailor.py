"""Files of Sailor: a plan, the training configuration, what a node of each GPU is, measured layer
times, and fits of the network's bandwidth.

A stage lists one tensor group for each replica, so the i-th groups of all stages are a replica. Its
network files hold fits in the form that a RATrain link takes (`log_quadratic`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

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
from ratrain.convert.kinds import Known, device_of, known_kind
from ratrain.convert.machines import Machine, cluster_of
from ratrain.describe.amounts import Count, Heads, Layers, Sequences, Tokens, WideWidth, Width
from ratrain.describe.cluster import ClusterSpec, DeviceKind, Level, Link
from ratrain.describe.layer_profile import LayerProfile
from ratrain.describe.strict import Rule, load, nearest
from ratrain.errors import SpecError
from ratrain.plan.plan_file import Plan, PlanReplica, PlanStage
from ratrain.plan.ranges import write_ranges
from ratrain.readers.files import shown
from ratrain.readers.json import read_json, read_json_table
from ratrain.readers.place import Place

SOURCE = "Sailor's"
USUAL = {
    "A100-40": "sailor-a100-40g",
    "V100-16": "sailor-v100-16g",
    "GH-96": "gh200-deepspeed",
    "RTX-2080": "sailor-rtx-2080ti",
    "RTX-3090": "sailor-rtx-3090",
    "Titan-RTX": "sailor-titan-rtx",
}
Seconds = Annotated[float, Rule(low=0, high=1e9)]
Slot = Annotated[int, Rule(low=0, high=10_002)]
_LATENCY_S: dict[Level, float] = {"host": 5e-6, "room": 20e-6, "world": 20e-6}


@dataclass(frozen=True)
class Pipeline:
    """An entry of `pipeline_list`. `tmp_per_stage`: for each stage and replica [GPUs, degree]."""

    layers_per_stage: tuple[tuple[Slot, ...], ...]
    tmp_per_stage: tuple[Any, ...]


@dataclass(frozen=True)
class SailorPlan:
    """What its planner makes; or a plan of its validation, with `gbs` and what was measured."""

    pipeline_list: tuple[Pipeline, ...]
    mbs: Count
    gbs: Sequences | None = None
    iter_time: Seconds | None = None
    real: Seconds | None = None


@dataclass(frozen=True)
class Training:
    """`training_config_*.json`."""

    hidden_size: Width
    num_layers: Layers
    vocab_size: WideWidth
    heads: Heads
    sequence_length: Tokens
    global_batch_size: Sequences


@dataclass(frozen=True)
class NodeType:
    """What a node of `basic_cluster_config.json` is."""

    gpus_per_node: Annotated[int, Rule(low=1, high=1024)]
    mem_per_gpu: Annotated[int, Rule(low=1, high=1 << 53)]


@dataclass(frozen=True)
class Files:
    """What the user gave. `rank`: which plan, where the file lists several."""

    training: Path
    cluster: Path
    plan: Path | None = None
    rank: int = 1
    profiles: tuple[tuple[str, Path], ...] = ()  # by GPU
    inside: Path | None = None
    between: Path | None = None
    dtype: str = "fp32"


@dataclass(frozen=True)
class Group:
    """A tensor group: so many GPUs of one kind, in one zone."""

    gpu: str
    zone: str
    tensor: int


def convert(files: Files, model: Model, likes: Mapping[str, str]) -> Converted:
    """The cluster and, where one is given, the plan of these files."""
    differs: list[str] = []
    table, place = read_json_table(files.training)
    training = load(Training, table, place, strict=False)
    _require_model(training, place, model)
    nodes, nodes_place = _node_types(files.cluster)
    entries = _entries(files, training, model, differs)
    plan_read, plan_place = (None, Place())
    groups: list[list[Group]] = []
    if files.plan is not None:
        plan_read, plan_place = _plan_of(files)
        groups = _groups(plan_read, nodes, plan_place)
    seats = _seats(groups, nodes, entries)
    cluster = _cluster(files, seats, nodes, nodes_place, entries, likes, model, differs)
    if plan_read is None:
        return Converted(cluster, None, None, tuple(differs))
    plan = _plan(plan_read, plan_place, training, model, groups, seats, files.dtype, differs)
    return Converted(cluster, plan, _theirs(plan_read), tuple(differs))


def _theirs(plan: SailorPlan) -> Theirs | None:
    if plan.real:
        return Theirs(plan.real, "measured")
    return Theirs(plan.iter_time, "predicted") if plan.iter_time else None


def _require_model(training: Training, place: Place, model: Model) -> None:
    spec = model.spec
    for key, value in (
        ("hidden_size", spec.hidden),
        ("num_layers", spec.layers),
        ("vocab_size", spec.vocab),
        ("heads", spec.heads),
    ):
        if getattr(training, key) != value:
            raise SpecError(
                f"{getattr(training, key)} here, {value} in {spec.name}",
                place=str(place.at(key)),
                fix="give the model that was trained as --model",
            )


def _node_types(path: Path) -> tuple[dict[str, NodeType], Place]:
    """Node types by GPU; other keys, such as the zone, are none."""
    table, place = read_json_table(path)
    types = {
        name: load(NodeType, cast("dict[str, Any]", value), place.at(name), strict=False)
        for name, value in table.items()
        if isinstance(value, dict)
    }
    if not types:
        raise SpecError(
            "no GPUs", place=str(place), fix='add "GH-96": {"gpus_per_node": 4, "mem_per_gpu": N}'
        )
    return types, place


# ---- profiles ---------------------------------------------------------------------------


def _entries(
    files: Files, training: Training, model: Model, differs: list[str]
) -> dict[str, tuple[LayerProfile, ...]]:
    """The entries of each GPU, one set for each tensor degree."""
    entries: dict[str, tuple[LayerProfile, ...]] = {}
    worst = 0.0
    for gpu, path in files.profiles:
        table, place = read_json_table(path)
        by_degree: dict[int, dict[int, list[Taken]]] = {}
        for size, of_size in table.items():
            for degree, slots in _object(of_size, place.at(size)).items():
                here = place.at(size, degree)
                number = _positive(size, place.at(size)), _positive(degree, here)
                by_degree.setdefault(number[1], {})[number[0]] = _slots(slots, here, model)
        if not by_degree:
            raise SpecError(
                "no measurements", place=str(place), fix='write {"1": {"1": {"0": [...]}}}'
            )
        found: list[LayerProfile] = []
        for degree, by_size in sorted(by_degree.items()):
            worst = max(worst, same_kind_of_slot(by_size))
            about = Conditions(
                model.spec,
                training.sequence_length,
                degree,
                files.dtype,
                f"{SOURCE} {path}, {gpu}",
            )
            with placed(place):
                found += entries_of_slots(by_size, about)
        entries[gpu] = tuple(found)
    if worst > 0.01:
        differs.append(
            f"layers of one measurement differ by up to {worst:.0%} from their median, which is "
            "taken for all"
        )
    if entries:
        differs.append(f"its profiles do not say their dtype: {files.dtype} is taken")
    return entries


def _object(value: Any, place: Place) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpecError(
            f"{shown(value, 40)} is not an object", place=str(place), fix="write an object"
        )
    return cast("dict[str, Any]", value)


def _positive(text: str, place: Place) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text)):
        raise SpecError(
            f"{shown(text)} is not a micro-batch or degree",
            place=str(place),
            fix='write it like "4"',
        )
    return int(text)


def _slots(value: Any, place: Place, model: Model) -> list[Taken]:
    """[forward, backward, update] in seconds of embedding, every layer, head."""
    table = _object(value, place)
    if len(table) != model.slots:
        raise SpecError(
            f"{len(table)} slots, but {model.spec.name} has {model.slots}: "
            f"{model.spec.layers} layers, embedding and head",
            place=str(place),
            fix="give the profile of this model",
        )
    slots: list[Taken] = []
    for number in range(model.slots):
        here = place.at(str(number))
        times = table.get(str(number))
        if times is None:
            raise SpecError(
                f"slot {number} is missing", place=str(place), fix=f'add "{number}": [...]'
            )
        if (
            not isinstance(times, list)
            or len(times := cast("list[Any]", times)) != 3
            or any(isinstance(t, bool) or not isinstance(t, int | float) for t in times)
            or not (0 < times[0] <= 1e6 and 0 <= times[1] <= 1e6 and 0 <= times[2] <= 1e6)
            or (times[1] == 0 and number)
        ):
            raise SpecError(
                f"{shown(times, 60)} are not the seconds of forward, backward and update",
                place=str(here),
                fix="write [forward, backward, update], forward and backward above 0",
            )
        slots.append(Taken(float(times[0]), float(times[1]), float(times[2])))
    return slots


# ---- the cluster ------------------------------------------------------------------------


@dataclass(frozen=True)
class Seats:
    """The nodes that are described, by (zone, GPU) in their order, and where each tensor group of
    each stage begins among their GPUs."""

    nodes: dict[tuple[str, str], int]
    first: tuple[tuple[int, ...], ...]
    devices: int


def _seats(
    groups: list[list[Group]],
    types: Mapping[str, NodeType],
    entries: Mapping[str, tuple[LayerProfile, ...]],
) -> Seats:
    """Nodes for the plan's groups, stage by stage, each group on one node where it fits there;
    without a plan one node of every GPU that was profiled, or of every one."""
    if not groups:
        names = [name for name in types if name in entries] or list(types)
        nodes = {("zone", name): 1 for name in names}
        return Seats(nodes, (), sum(types[name].gpus_per_node for name in names))
    used: dict[tuple[str, str], int] = {}
    places: list[list[tuple[tuple[str, str], int]]] = []
    for stage in groups:
        row: list[tuple[tuple[str, str], int]] = []
        for group in stage:
            key, per_node = (group.zone, group.gpu), types[group.gpu].gpus_per_node
            start = used.get(key, 0)
            left = -start % per_node
            if left < group.tensor and left:
                start += left
            used[key] = start + group.tensor
            row.append((key, start))
        places.append(row)
    nodes = {key: -(-count // types[key[1]].gpus_per_node) for key, count in used.items()}
    begins: dict[tuple[str, str], int] = {}
    devices = 0
    for key, count in nodes.items():
        begins[key] = devices
        devices += count * types[key[1]].gpus_per_node
    first = tuple(tuple(begins[key] + start for key, start in row) for row in places)
    return Seats(nodes, first, devices)


def _cluster(
    files: Files,
    seats: Seats,
    types: Mapping[str, NodeType],
    place: Place,
    entries: Mapping[str, tuple[LayerProfile, ...]],
    likes: Mapping[str, str],
    model: Model,
    differs: list[str],
) -> ClusterSpec:
    kinds: dict[str, DeviceKind] = {}
    known: dict[str, Known] = {}
    for _, gpu in seats.nodes:
        if gpu in kinds:
            continue
        here = place.at(gpu)
        known[gpu] = known_kind(gpu, likes, USUAL, here)
        memory = types[gpu].mem_per_gpu
        kinds[gpu] = device_of(
            gpu, known[gpu], (memory, place.file), entries.get(gpu, ()), model.spec
        )
        differs.append(
            f"{gpu}: times are as measured there; memory bandwidth follows from {known[gpu].name}"
            if gpu in entries
            else f"{gpu}: its profile is not given, so all times follow from {known[gpu].name}"
        )
    machines = [
        Machine(
            f"{gpu}-{zone}",
            (gpu,) * types[gpu].gpus_per_node,
            _inside(files, gpu, types[gpu].gpus_per_node, known[gpu]),
            _between(files, gpu, zone, types, known[gpu]),
            _far(files, gpu, zone, seats, types),
            zone,
        )
        for (zone, gpu), count in seats.nodes.items()
        for _ in range(count)
    ]
    if files.between is not None:
        differs.append(
            "bandwidth between nodes is that of all GPUs of a node together, shared by the node; "
            "there it is looked up by the number of GPUs that send"
        )
    with placed(place):
        return cluster_of("converted", f"{SOURCE} {place.file}", tuple(kinds.values()), machines)


def _inside(files: Files, gpu: str, per_node: int, known: Known) -> Link:
    """The link between GPUs of one node."""
    if files.inside is None:
        return _known_link(known, "host", gpu, "--inside")
    value, place = read_json(files.inside)
    if per_node == 1:
        return _known_link(known, "room", gpu, "--inside")
    return _fit(value, place, (gpu, str(per_node)), "host", shared=False)


def _between(
    files: Files, gpu: str, zone: str, types: Mapping[str, NodeType], known: Known
) -> Link:
    """The link between nodes of one zone, of all GPUs of a node."""
    if files.between is None:
        return _known_link(known, "room", gpu, "--between")
    value, place = read_json(files.between)
    count = str(types[gpu].gpus_per_node)
    return _fit(value, place, (zone, gpu, count, zone, gpu, count), "room", shared=True)


def _far(
    files: Files, gpu: str, zone: str, seats: Seats, types: Mapping[str, NodeType]
) -> Link | None:
    """The slowest link to a node of another zone; None where there is no other zone."""
    others = [(z, other) for z, other in seats.nodes if z != zone]
    if not others:
        return None
    if files.between is None:
        raise SpecError(
            f"the plan has nodes in {zone} and {others[0][0]}, and no link between them is known",
            place="--between",
            fix="add --between multizone_bandwidths_het.json",
        )
    value, place = read_json(files.between)
    count = str(types[gpu].gpus_per_node)
    links = [
        _fit(
            value,
            place,
            (zone, gpu, count, other_zone, other, str(types[other].gpus_per_node)),
            "world",
            shared=True,
        )
        for other_zone, other in others
    ]
    return min(links, key=lambda link: link.bandwidth_bytes_per_s)


def _known_link(known: Known, level: Level, gpu: str, option: str) -> Link:
    for outwards in (level, "room", "site", "world"):
        if outwards in known.links:
            return known.links[outwards]
    raise SpecError(
        f"the links of {gpu} are not known: {known.name} has none",
        place=option,
        fix=f"give its network file as {option}, or --like {gpu}=CLUSTER, a cluster with links",
    )


def _fit(value: Any, place: Place, keys: tuple[str, ...], level: Level, *, shared: bool) -> Link:
    """The link of a fit [[a, b, c], bytes/s], found by these keys."""
    for key in keys:
        table = _object(value, place)
        if key not in table:
            raise SpecError(
                f"no bandwidth of {shown(key)}", place=str(place), fix=nearest(key, list(table))
            )
        value, place = table[key], place.at(key)
    pair = cast("list[Any]", value) if isinstance(value, list) else []
    numbers = [*cast("list[Any]", pair[0]), pair[1]] if len(pair) == 2 and _is_list(pair[0]) else []
    if len(numbers) != 4 or any(
        isinstance(one, bool) or not isinstance(one, int | float) or abs(one) > 1e18
        for one in numbers
    ):
        raise SpecError(
            f"{shown(value, 60)} is not a fit of bandwidth",
            place=str(place),
            fix="write [[a, b, c], bytes per second]",
        )
    a, b, c, most = map(float, numbers)
    if not 1 <= most <= 1e18 or max(map(abs, (a, b, c))) > 1e6:
        raise SpecError(
            f"a bandwidth of {most:g} bytes/s, a fit of {a:g}, {b:g}, {c:g}",
            place=str(place),
            fix="write [[a, b, c], bytes per second], a, b and c in GB/s",
        )
    link = Link(
        _LATENCY_S[level],
        most,
        f"bandwidth: {SOURCE} {place.file}; latency: assumed",
        shared_by="host" if shared else "device",
        log_quadratic=(a, b, c),
    )
    with placed(place):
        assert link.points
    return link


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


# ---- the plan ---------------------------------------------------------------------------


def _plan_of(files: Files) -> tuple[SailorPlan, Place]:
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
    plan = load(SailorPlan, _object(value, place), place, strict=False)
    if len(plan.pipeline_list) != 1:
        raise SpecError(
            f"{len(plan.pipeline_list)} pipelines: how they divide the batch is not in the file",
            place=str(place.at("pipeline_list")),
            fix="give a plan of one pipeline with its replicas",
        )
    return plan, place


def _groups(plan: SailorPlan, types: Mapping[str, NodeType], place: Place) -> list[list[Group]]:
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
        if not isinstance(stage, list) or not stage or len(stage) > 100_000:
            raise SpecError(
                f"{shown(stage, 40)} are not the replicas of a stage",
                place=str(at),
                fix="write [[[[GPU, count, zone]], degree], ...]",
            )
        replicas = cast("list[Any]", stage)
        read.append([_group(one, types, at.at(i)) for i, one in enumerate(replicas)])
        if len(read[-1]) != len(read[0]):
            raise SpecError(
                f"{len(read[-1])} replicas, {len(read[0])} on the first stage: a replica of a "
                "RATrain plan is a pipeline of fixed ranks",
                place=str(at),
                fix="give a plan whose stages have one data degree",
            )
    return read


def _group(value: Any, types: Mapping[str, NodeType], place: Place) -> Group:
    fix = "write [[[GPU, count, zone]], degree]"
    pair = cast("list[Any]", value) if isinstance(value, list) else []
    if len(pair) != 2 or not isinstance(pair[0], list) or not pair[0]:
        raise SpecError(f"{shown(value, 60)} is not a tensor group", place=str(place), fix=fix)
    parts = cast("list[Any]", pair[0])
    if len(parts) != 1:
        raise SpecError(
            f"a tensor group of {len(parts)} kinds of GPU or zones",
            place=str(place.at(0)),
            fix="give a plan whose tensor groups are of one kind in one zone",
        )
    part = cast("list[Any]", parts[0]) if isinstance(parts[0], list) else []
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


def _plan(
    read: SailorPlan,
    place: Place,
    training: Training,
    model: Model,
    groups: list[list[Group]],
    seats: Seats,
    dtype: str,
    differs: list[str],
) -> Plan:
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
                    write_ranges(
                        [
                            device
                            for member in members
                            for device in range(
                                seats.first[n][member],
                                seats.first[n][member] + groups[n][member].tensor,
                            )
                        ]
                    ),
                    groups[n][members[0]].tensor,
                    stage_layers,
                    read.mbs,
                    "none",
                    0,
                )
                for n, stage_layers in enumerate(layers)
            ),
        )
        for members in entries.values()
    )
    differs.append(
        "schedule and recovery are not in its plan: 1F1B that keeps activations, optimizer not "
        "sharded, as its runtime does; its memory formula (20 bytes a parameter and 5.06 GB) is "
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
            f"{micro_batches} micro-batches over {data} replicas: the first {left} take {each + 1}, the "
            f"others {each}; Sailor prices {each + 1} for all, more sequences than the batch has"
        )
    return [each + (replica < left) for replica in range(data)]
