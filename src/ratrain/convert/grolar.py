"""Files of Grolar (earlier: Zorse): a training configuration, a cluster's description, and a table
of layer times by model, GPU, sequence length and dtype.

Its data parallelism is by stage: a group of GPUs is one pipeline position, and each GPU takes some
micro-batches of every step. In a RATrain plan a replica is a pipeline of fixed ranks. The two are
one where all groups divide the micro-batches alike; other plans are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from ratrain.convert.converted import (
    DTYPES,
    Choices,
    Converted,
    Model,
    Theirs,
    placed,
    plan_for,
)
from ratrain.convert.entries import Conditions, Taken, entry_of
from ratrain.convert.kinds import Known, device_of, known_kind
from ratrain.convert.machines import Machine, cluster_of
from ratrain.describe.amounts import Count, Devices, Name, Sequences, Tokens
from ratrain.describe.cluster import ClusterSpec, DeviceKind, Link
from ratrain.describe.layer_profile import LayerProfile
from ratrain.describe.strict import FrozenMap, Rule, load, nearest
from ratrain.errors import SpecError
from ratrain.plan.plan_file import Plan, PlanReplica, PlanStage
from ratrain.plan.ranges import write_ranges
from ratrain.readers.files import shown
from ratrain.readers.json import read_json_table
from ratrain.readers.place import Place

Rank = Annotated[int, Rule(low=0, high=(1 << 18) - 1)]
Share = Annotated[int, Rule(low=0, high=1_000_000)]
Layer = Annotated[int, Rule(low=0, high=10_000)]
GigabytesPerS = Annotated[float, Rule(low=1e-6, high=1e6)]
Mebibytes = Annotated[int, Rule(low=1, high=1 << 33)]
Milliseconds = Annotated[float, Rule(low=0, high=1e12)]
Dtype = Literal["float16", "bfloat16", "float32"]

SOURCE = "Grolar's"
USUAL = {
    "h100-nvl": "grolar-h100-nvl",
    "a100x40": "grolar-a100-40g",
    "a100x80": "grolar-a100-80g",
    "a6000": "grolar-a6000",
    "a10g": "grolar-a10g",
    "l4": "grolar-l4",
    "v100x16": "grolar-v100-16g",
    "v100-pciex16": "grolar-v100-16g",
    "t4": "grolar-t4",
    "p100": "grolar-p100",
    "p40": "grolar-p40",
    "w6800": "grolar-w6800",
}
_LATENCY_S = 20e-6


@dataclass(frozen=True)
class Ministage:
    """One entry of `pipeline_config`."""

    gpu_ranks: tuple[Rank, ...]
    num_microbatches_per_rank: tuple[Share, ...]
    layer_partition: tuple[Layer, ...]
    zero_config: tuple[tuple[Rank, ...], ...] = ()


@dataclass(frozen=True)
class Training:
    """What its planner writes."""

    model_name: Name
    global_batch_size: Sequences
    microbatch_size: Count
    sequence_length: Tokens
    pipeline_config: tuple[Ministage, ...]
    autocast_dtype: Dtype = "float16"
    reduce_dtype: Dtype = "float32"
    latency: Milliseconds | None = None


@dataclass(frozen=True)
class Gpu:
    name: Name
    memory_total_mib: Mebibytes
    global_rank: Rank


@dataclass(frozen=True)
class Host:
    machine: Name
    machine_index: Rank
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True)
class Bandwidth:
    """GB/s inside each machine, and between two; machines by their number."""

    intranode_bandwidth: FrozenMap[GigabytesPerS]
    internode_bandwidth: FrozenMap[FrozenMap[GigabytesPerS]]


@dataclass(frozen=True)
class Hardware:
    """`cluster_info.json`."""

    machines: tuple[Host, ...]
    bandwidth: Bandwidth


@dataclass(frozen=True)
class Files:
    """What the user gave."""

    cluster: Path
    plan: Path | None = None
    profile: Path | None = None
    profiled: str | None = None  # the model's name in the profile; None: the plan's


def convert(files: Files, model: Model, likes: Mapping[str, str]) -> Converted:
    """The cluster and, where one is given, the plan of these files."""
    hardware, hardware_place = _loaded(Hardware, files.cluster)
    training, training_place = (None, Place())
    if files.plan is not None:
        training, training_place = _loaded(Training, files.plan)
    differs: list[str] = []
    entries = _entries(files, training, model)
    cluster = _cluster(hardware, hardware_place, entries, likes, model, differs)
    if training is None:
        return Converted(cluster, None, None, tuple(differs))
    plan = _plan(training, training_place, model, cluster.size or 0, differs)
    theirs = None
    if training.latency:
        theirs = Theirs(training.latency / 1e3, "predicted")
    return Converted(cluster, plan, theirs, tuple(differs))


def _loaded(kind: type[Any], path: Path) -> tuple[Any, Place]:
    table, place = read_json_table(path)
    return load(kind, table, place, strict=False), place


# ---- the profile ------------------------------------------------------------------------


def _entries(
    files: Files, training: Training | None, model: Model
) -> dict[str, tuple[LayerProfile, ...]]:
    """Layer times by GPU: those of the model in all sequence lengths and dtypes."""
    if files.profile is None:
        return {}
    table, place = read_json_table(files.profile)
    name = files.profiled or (training.model_name if training else None)
    if name is None or name not in table:
        raise SpecError(
            f"which of its models is {model.spec.name}?"
            if name is None
            else f"it has no model {shown(name)}",
            place=str(place),
            fix=f"give --profiled; {nearest(name or '', list(table))}",
        )
    found: dict[str, tuple[LayerProfile, ...]] = {}
    at = place.at(name)
    for gpu, of_gpu in _table(table[name], at).items():
        entries: list[LayerProfile] = []
        for tokens, of_length in _table(of_gpu, at.at(gpu)).items():
            for dtype, times in _table(of_length, at.at(gpu, tokens)).items():
                here = at.at(gpu, tokens, dtype)
                about = Conditions(
                    model.spec,
                    _tokens(tokens, here),
                    1,
                    _dtype(dtype, here),
                    f"{files.profile.name}: {name}, {gpu}",
                )
                with placed(here):
                    entries.append(entry_of(_taken(times, here), "layer", about))
        found[gpu] = tuple(entries)
    return found


def _table(value: Any, place: Place) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpecError(
            f"{shown(value, 40)} is not an object", place=str(place), fix="write an object"
        )
    return cast("dict[str, Any]", value)


def _tokens(text: str, place: Place) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) <= 1 << 27):
        raise SpecError(
            f"{shown(text)} is not a number of tokens", place=str(place), fix='write it like "512"'
        )
    return int(text[:12])


def _dtype(text: str, place: Place) -> str:
    if text not in DTYPES:
        raise SpecError(
            f"{shown(text)} is not a dtype", place=str(place), fix=nearest(text, DTYPES)
        )
    return DTYPES[text]


def _taken(value: Any, place: Place) -> dict[int, Taken]:
    """Times by micro-batch: [line, line, forward, backward], the last two in ms for 1, 2, ...
    samples; or the two lines alone, slope and intercept in ms over samples, read at 1 and 2."""
    lists = cast("list[Any]", value) if isinstance(value, list) else []
    if len(lists) not in (2, 4) or not all(isinstance(one, list) for one in lists):
        raise SpecError(
            "these are not the lines and times of forward and backward",
            place=str(place),
            fix="write [[slope, intercept], [slope, intercept], forward times, backward times]",
        )
    rows = [_numbers(one, place.at(number)) for number, one in enumerate(lists)]
    if len(rows) == 2:
        (f, f0), (b, b0) = (_line(row, place.at(number)) for number, row in enumerate(rows))
        times = [(f * size + f0, b * size + b0) for size in (1, 2)]
    elif len(rows[2]) != len(rows[3]) or not rows[2]:
        raise SpecError(
            f"{len(rows[2])} forward times and {len(rows[3])} backward times",
            place=str(place),
            fix="give one of each for every micro-batch",
        )
    else:
        times = list(zip(rows[2], rows[3], strict=True))
    for size, (forward, backward) in enumerate(times, 1):
        if forward <= 0 or backward <= 0:
            raise SpecError(
                f"micro-batch {size} takes {forward:g} ms forward and {backward:g} ms backward",
                place=str(place),
                fix="give times above 0",
            )
    return {size: Taken(f / 1e3, b / 1e3) for size, (f, b) in enumerate(times, 1)}


def _numbers(value: list[Any], place: Place) -> list[float]:
    for number, one in enumerate(value):
        if isinstance(one, bool) or not isinstance(one, int | float) or abs(one) > 1e9:
            raise SpecError(
                f"{shown(one, 40)} is not a time in ms",
                place=str(place.at(number)),
                fix="write a number of ms",
            )
    if len(value) > 10_000:
        raise SpecError(
            f"{len(value):,} numbers", place=str(place), fix="give at most 10,000 micro-batches"
        )
    return [float(one) for one in value]


def _line(row: list[float], place: Place) -> tuple[float, float]:
    if len(row) != 2:
        raise SpecError(
            f"a line of {len(row)} numbers", place=str(place), fix="give slope and intercept"
        )
    return row[0], row[1]


# ---- the cluster ------------------------------------------------------------------------


def _cluster(
    hardware: Hardware,
    place: Place,
    entries: Mapping[str, tuple[LayerProfile, ...]],
    likes: Mapping[str, str],
    model: Model,
    differs: list[str],
) -> ClusterSpec:
    _require_ranks(hardware, place)
    kinds: dict[str, DeviceKind] = {}
    assumed: list[str] = []
    for number, host in enumerate(hardware.machines):
        for slot, gpu in enumerate(host.gpus):
            here = place.at("machines", number, "gpus", slot)
            memory = gpu.memory_total_mib << 20
            if gpu.name not in kinds:
                known = known_kind(gpu.name, likes, USUAL, here.at("name"))
                kinds[gpu.name] = device_of(
                    gpu.name, known, (memory, place.file), entries.get(gpu.name, ()), model.spec
                )
                assumed.append(_assumed(gpu.name, known, gpu.name in entries))
            elif kinds[gpu.name].memory.capacity_bytes != memory:
                raise SpecError(
                    f"{gpu.name} has {gpu.memory_total_mib} MiB here and "
                    f"{kinds[gpu.name].memory.capacity_bytes >> 20} MiB before",
                    place=str(here.at("memory_total_mib")),
                    fix="give GPUs of unequal memory unequal names",
                )
    differs += assumed
    machines = _machines(hardware, place, differs)
    differs.append(
        "its latencies are not carried over: they hold the whole time of a 40 MB message, in "
        "seconds; 20 us are assumed for every link"
    )
    with placed(place):
        return cluster_of("converted", f"{SOURCE} {place.file}", tuple(kinds.values()), machines)


def _assumed(kind: str, known: Known, measured: bool) -> str:
    if measured:
        return (
            f"{kind}: layers are as measured there; embedding, head, updates and memory bandwidth "
            f"are not in its files and follow from {known.name}"
        )
    return f"{kind}: its layer times are not given, so all times follow from {known.name}"


def _require_ranks(hardware: Hardware, place: Place) -> None:
    """Refuses GPUs whose global ranks are not 0, 1, 2, ... in the machines' order."""
    expected = 0
    for number, host in enumerate(hardware.machines):
        here = place.at("machines", number)
        if host.machine_index != number:
            raise SpecError(
                f"machine {number} has the number {host.machine_index}",
                place=str(here.at("machine_index")),
                fix=f"list machines by their number, or write {number}",
            )
        for slot, gpu in enumerate(host.gpus):
            if gpu.global_rank != expected:
                raise SpecError(
                    f"rank {gpu.global_rank} where rank {expected} is due",
                    place=str(here.at("gpus", slot, "global_rank")),
                    fix="list GPUs by rank, each rank once",
                )
            expected += 1
        if not host.gpus:
            raise SpecError(
                "a machine without GPUs", place=str(here.at("gpus")), fix="leave the machine out"
            )
    if not expected:
        raise SpecError("no machines", place=str(place.at("machines")), fix="list a machine")
    if expected > 1 << 18:
        raise SpecError(
            f"{expected:,} GPUs", place=str(place.at("machines")), fix=f"list at most {1 << 18:,}"
        )


def _machines(hardware: Hardware, place: Place, differs: list[str]) -> list[Machine]:
    """The machines with their links. A cluster has one speed for each machine, of which two
    machines use the lower: the fastest that a machine has to any other says all links where that
    is so, else its slowest, which flatters none."""
    count = len(hardware.machines)
    rates = _rates(hardware, place)
    fastest = [
        max((rates[i, j] for j in range(count) if j != i), default=0.0) for i in range(count)
    ]
    slowest = [
        min((rates[i, j] for j in range(count) if j != i), default=0.0) for i in range(count)
    ]
    exact = all(min(fastest[i], fastest[j]) == rate for (i, j), rate in rates.items())
    if not exact:
        low, high = min(rates.values()), max(rates.values())
        differs.append(
            f"links between machines ({low:g} to {high:g} GB/s by pair) become one speed for each "
            "machine, that of its slowest link"
        )
    between = fastest if exact else slowest
    inside = hardware.bandwidth.intranode_bandwidth
    machines: list[Machine] = []
    for number, host in enumerate(hardware.machines):
        own = inside.get(str(number))
        if own is None and len(host.gpus) > 1:
            raise SpecError(
                f"no bandwidth inside machine {number}",
                place=str(place.at("bandwidth", "intranode_bandwidth")),
                fix=f'add "{number}": GB/s',
            )
        machines.append(
            Machine(
                host.machine,
                tuple(gpu.name for gpu in host.gpus),
                _link(own or between[number] or 1.0, place.file),
                _link(between[number], place.file) if count > 1 else None,
            )
        )
    return machines


def _rates(hardware: Hardware, place: Place) -> dict[tuple[int, int], float]:
    """GB/s between every two machines; where both directions are given, the slower."""
    given = hardware.bandwidth.internode_bandwidth
    rates: dict[tuple[int, int], float] = {}
    count = len(hardware.machines)
    if count > 2000:
        raise SpecError(
            f"{count:,} machines", place=str(place.at("machines")), fix="list at most 2,000"
        )
    for i in range(count):
        for j in range(count):
            if i == j:
                continue
            known = [
                rate
                for a, b in ((i, j), (j, i))
                if (rate := given.get(str(a), FrozenMap[float]()).get(str(b))) is not None
            ]
            if not known:
                raise SpecError(
                    f"no bandwidth between machines {i} and {j}",
                    place=str(place.at("bandwidth", "internode_bandwidth")),
                    fix=f'add "{i}": {{"{j}": GB/s}}',
                )
            rates[i, j] = min(known)
    return rates


def _link(gigabytes_per_s: float, file: str) -> Link:
    return Link(
        _LATENCY_S,
        gigabytes_per_s * 1e9,
        f"bandwidth: {SOURCE} {file}; latency: assumed",
    )


# ---- the plan ---------------------------------------------------------------------------


def _plan(
    training: Training, place: Place, model: Model, devices: Devices, differs: list[str]
) -> Plan:
    here = place.at("pipeline_config")
    for number, stage in enumerate(training.pipeline_config):
        _require_stage(stage, devices, here.at(number))
    groups = _groups(training, here)
    layers = _layers(training, model, here)
    shares = _shares(training, groups, here)
    total = sum(shares) * training.microbatch_size
    if total != training.global_batch_size:
        raise SpecError(
            f"the ranks' micro-batches hold {total} sequences, the batch has "
            f"{training.global_batch_size}",
            place=str(place.at("global_batch_size")),
            fix=f"write {total}, or correct num_microbatches_per_rank",
        )
    by_share = [_by_share(training.pipeline_config[number]) for number in range(groups)]
    equal = len(set(shares)) == 1
    sharding = 3 if equal else 2
    replicas: list[PlanReplica] = []
    taken = 0
    for share, count in Counter(shares).items():
        stages = tuple(
            PlanStage(
                write_ranges([rank for rank, _ in by_share[n % groups][taken : taken + count]]),
                1,
                stage_layers,
                training.microbatch_size,
                "backward",
                sharding,
            )
            for n, stage_layers in enumerate(layers)
        )
        replicas.append(PlanReplica(count, share, stages))
        taken += count
    differs += _said_of_plan(training, equal, groups)
    choices = Choices(
        "pe-zero" if equal else "breadth-first",
        training.global_batch_size,
        training.sequence_length,
        DTYPES[training.autocast_dtype],
    )
    return plan_for(model, devices, choices, tuple(replicas))


def _require_stage(stage: Ministage, devices: int, here: Place) -> None:
    ranks = stage.gpu_ranks
    if not ranks or len(set(ranks)) < len(ranks) or max(ranks) >= devices:
        raise SpecError(
            f"ranks {shown(list(ranks), 60)} are not among 0 to {devices - 1}, each once",
            place=str(here.at("gpu_ranks")),
            fix="list ranks of the cluster file, each once",
        )
    if len(stage.num_microbatches_per_rank) != len(ranks):
        raise SpecError(
            f"{len(stage.num_microbatches_per_rank)} numbers of micro-batches for {len(ranks)} "
            "ranks",
            place=str(here.at("num_microbatches_per_rank")),
            fix="give one for each rank",
        )
    if len(stage.layer_partition) != 2:
        raise SpecError(
            f"{len(stage.layer_partition)} numbers",
            place=str(here.at("layer_partition")),
            fix="give the first layer and the one after the last",
        )


def _groups(training: Training, here: Place) -> int:
    """How many groups there are: ministages go round them in turns."""
    stages = training.pipeline_config
    if not stages:
        raise SpecError("no stages", place=str(here), fix="list one stage")
    seen: list[frozenset[int]] = []
    for number, stage in enumerate(stages):
        ranks = frozenset(stage.gpu_ranks)
        if ranks in seen:
            break
        overlap = next((group for group in seen if group & ranks), None)
        if overlap is not None:
            raise SpecError(
                f"rank {min(overlap & ranks)} is in two groups",
                place=str(here.at(number, "gpu_ranks")),
                fix="list each rank in one group",
            )
        seen.append(ranks)
    for number, stage in enumerate(stages):
        first = stages[number % len(seen)]
        if _by_share(stage) != _by_share(first):
            raise SpecError(
                "this ministage has other ranks or shares than the one a round before",
                place=str(here.at(number)),
                fix="let ministages go round the groups in one order, each with the same shares",
            )
    if len(stages) % len(seen):
        raise SpecError(
            f"{len(stages)} ministages for {len(seen)} groups",
            place=str(here),
            fix="give every group as many ministages",
        )
    return len(seen)


def _by_share(stage: Ministage) -> list[tuple[int, int]]:
    """(rank, micro-batches) of a stage's ranks, most first; those without any are left out."""
    pairs = zip(stage.gpu_ranks, stage.num_microbatches_per_rank, strict=True)
    return sorted((pair for pair in pairs if pair[1]), key=lambda pair: (-pair[1], pair[0]))


def _shares(training: Training, groups: int, here: Place) -> list[int]:
    """Micro-batches of each replica: what the i-th rank of every group takes."""
    first = [share for _, share in _by_share(training.pipeline_config[0])]
    if not first:
        raise SpecError(
            "no rank has a micro-batch",
            place=str(here.at(0, "num_microbatches_per_rank")),
            fix="give one rank a share",
        )
    for number in range(1, groups):
        shares = [share for _, share in _by_share(training.pipeline_config[number])]
        if shares != first:
            raise SpecError(
                f"this group divides its micro-batches as {_few(shares)}, the first as "
                f"{_few(first)}: a micro-batch may run on any rank of a group there, while a "
                "replica of a RATrain plan is a pipeline of fixed ranks",
                place=str(here.at(number, "num_microbatches_per_rank")),
                fix="convert a plan whose groups divide their micro-batches alike, or only its "
                "cluster and profile, and let `ratrain plan` find one",
            )
    return first


def _few(numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers[:8]))
    return f"{text}, ..." if len(numbers) > 8 else text


def _layers(training: Training, model: Model, here: Place) -> list[int]:
    """Layers of each ministage; together they are the model's."""
    expected = 0
    for number, stage in enumerate(training.pipeline_config):
        first, end = stage.layer_partition
        if first != expected or end <= first:
            raise SpecError(
                f"layers {first} to {end - 1} where layer {expected} is due",
                place=str(here.at(number, "layer_partition")),
                fix=f"begin with {expected}, and give it at least one layer",
            )
        expected = end
    if expected != model.spec.layers:
        raise SpecError(
            f"its stages have {expected} layers, {model.spec.name} has {model.spec.layers}",
            place=str(here),
            fix=f"give the model with {expected} layers as --model",
        )
    return [
        stage.layer_partition[1] - stage.layer_partition[0] for stage in training.pipeline_config
    ]


def _said_of_plan(training: Training, equal: bool, groups: int) -> list[str]:
    said: list[str] = []
    if equal:
        said.append(
            "order and state work are those of pe-zero: breadth-first, every weight gathered once "
            "in forward and once in backward, whole layers recovered"
        )
    else:
        said.append(
            "ranks take unequal numbers of micro-batches, and such replicas cannot gather sharded "
            "weights here: weights are kept whole (sharding 2), gathered once after the update; "
            "Grolar gathers them twice a step and holds less"
        )
    said.append(
        "not carried over: shards and inputs wait in host memory there, and here in the GPU's, so "
        "more memory is needed here; its 2 GB reserve is not kept"
    )
    if training.reduce_dtype == "float32" and training.autocast_dtype != "float32":
        said.append("gradients travel in float32 there and in 16 bits here: half the bytes")
    idle = [
        rank
        for stage in training.pipeline_config[:groups]
        for rank, share in zip(stage.gpu_ranks, stage.num_microbatches_per_rank, strict=True)
        if not share
    ]
    if idle:
        said.append(f"ranks without a micro-batch are left idle: {write_ranges(sorted(idle))}")
    if any(len(stage.zero_config) > 1 for stage in training.pipeline_config):
        said.append("states are sharded over the whole group here, over parts of it there")
    if training.latency is not None:
        said.append(
            "its time counts layers alone (no embedding, head or update), a start and an end at "
            "the pace of each group's slowest GPU, and collectives a thousand times too short"
        )
    return said
