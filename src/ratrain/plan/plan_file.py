"""The plan file: what a search found, as JSON that people read and edit.

    replicas -> stages -> devices, tensor degree, layers, micro-batch, recovery, sharding

Replicas that behave alike share an entry with a `count`. `devices` counts a cluster's devices
in its own order: "0-15, 32" are sixteen and one more; member i of a stage's tensor groups holds
the i-th run of `tensor` devices. Loaded strictly: a wrong key, or two numbers that contradict each
other, is one error with its place. Where all replicas are divided alike a plan is a `Candidate`;
where they are not (`is_uneven`), it is read by `uneven_setup`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ratrain.describe.amounts import Count, Devices, FileName, Name, Period, Sequences, Tokens
from ratrain.describe.cluster import Device
from ratrain.describe.job import JobSpec, LayoutSpec, WireType
from ratrain.describe.job_file import job_from_table
from ratrain.describe.strict import Rule, load
from ratrain.errors import SpecError
from ratrain.plan.buckets import require_bucketable
from ratrain.plan.build import Candidate
from ratrain.plan.enumerate import StateMode, strategy_of
from ratrain.plan.fixed_orders import file_of
from ratrain.plan.placement import Placement
from ratrain.plan.ranges import read_ranges, write_ranges
from ratrain.program.setup import Recovery
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import PREFETCH, Strategy, strategy
from ratrain.readers.json import as_table, parse_json, read_json_table
from ratrain.readers.place import Place

FORMAT = "ratrain plan 1"
Mode = Literal["none", "selective", "backward", "forward"]


@dataclass(frozen=True)
class PlanStage:
    """Consecutive layers on one group of devices; embedding and head stand on the ends."""

    devices: str
    tensor: Count
    layers: Annotated[int, Rule(low=0, high=10_000)]
    micro_batch: Count
    recovery: Mode
    sharding: Annotated[int, Rule(low=0, high=3)]
    offload: Name | None = None  # the tier that activations or states wait in: cannot run yet


@dataclass(frozen=True)
class PlanReplica:
    """`count` replicas that behave alike; each stage lists the devices of all of them."""

    count: Count
    micro_batches: Count
    stages: tuple[PlanStage, ...]


@dataclass(frozen=True)
class PlanModel:
    name: FileName
    sequence_length: Tokens


@dataclass(frozen=True)
class PlanCluster:
    name: FileName
    devices: Devices


@dataclass(frozen=True)
class Predicted:
    """What the planner expected; for people, and read by nothing."""

    step_time_s: Annotated[float, Rule(low=0, high=1e15)]
    bound_bytes: Annotated[int, Rule(low=0, high=1 << 53)]


@dataclass(frozen=True)
class Plan:
    """A plan file. `schedule` and `skeleton` name the strategy; the rest is what it left open."""

    format: Literal["ratrain plan 1"]
    model: PlanModel
    cluster: PlanCluster
    sequences: Sequences
    dtype: Name
    schedule: Name
    skeleton: FileName
    without: tuple[Name, ...]
    accumulation: Literal["local", "sharded"]
    recovery_buffer: Count
    prefetch: bool
    replicas: tuple[PlanReplica, ...]
    memory_budget_bytes: Annotated[int, Rule("bytes", low=1)] | None = None  # None: all there is
    backend: Name = "torch"
    passes: tuple[Name, ...] | None = None  # None: the schedule's own
    average_every: Period | None = None
    clip_norm: Annotated[float, Rule(low=1e-12)] | None = None
    overflow: Literal["step", "unit"] = "step"
    recover_heads: bool | None = None
    sequence_parallel: bool = False
    gradient_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    gradient_wire: WireType | None = None  # None: as dtype
    boundary_wire: WireType | None = None
    error_feedback: bool = False
    gradient_bucket_bytes: Annotated[int, Rule("bytes", low=1)] | None = None  # None: whole
    collective: Name | None = None
    predicted: Predicted | None = None


def plan_of(candidate: Candidate, predicted: Predicted | None = None) -> Plan:
    """The plan that says what a candidate is."""
    job, layout = candidate.job, candidate.layout
    replicas: list[PlanReplica] = []
    for alike in candidate.placement.classes:
        stages: list[PlanStage] = []
        for number, (layers, recovery) in enumerate(
            zip(candidate.layers, candidate.recovery, strict=True)
        ):
            members = [
                candidate.placement.device(number % layout.pipeline, data, tensor).index
                for data in alike.members
                for tensor in range(layout.tensor)
            ]
            stages.append(
                PlanStage(
                    write_ranges(members),
                    layout.tensor,
                    layers,
                    job.batch.micro_batch,
                    recovery.value,
                    candidate.mode.sharding,
                )
            )
        replicas.append(PlanReplica(len(alike.members), candidate.micro_batches, tuple(stages)))
    return plan_of_replicas(
        job,
        candidate.strategy,
        candidate.mode,
        candidate.buffer,
        replicas,
        sequence_parallel=layout.sequence_parallel,
        predicted=predicted,
    )


def plan_of_replicas(
    job: JobSpec,
    chosen: Strategy,
    mode: StateMode,
    recovery_buffer: int,
    replicas: Sequence[PlanReplica],
    *,
    sequence_parallel: bool,
    predicted: Predicted | None,
) -> Plan:
    """The plan of a job on these replicas, with all that the job says besides."""
    schedule = job.schedule
    return Plan(
        format=FORMAT,
        model=PlanModel(job.model.name, job.model.sequence_length),
        cluster=PlanCluster(job.cluster.name, job.cluster.devices),
        sequences=job.batch.sequences,
        dtype=schedule.dtype,
        schedule=schedule.name,
        skeleton=file_of(chosen.skeleton),
        without=schedule.without,
        accumulation="sharded" if mode.sharded_gradients else "local",
        recovery_buffer=recovery_buffer,
        prefetch=chosen.prefetch,
        replicas=tuple(replicas),
        memory_budget_bytes=schedule.memory_budget_bytes,
        backend=schedule.backend,
        passes=schedule.passes,
        average_every=schedule.average_every,
        clip_norm=job.train.clip_norm,
        overflow=job.train.overflow,
        recover_heads=schedule.recover_heads,
        sequence_parallel=sequence_parallel,
        gradient_dtype=schedule.gradient_dtype,
        gradient_wire=schedule.gradient_wire,
        boundary_wire=schedule.boundary_wire,
        error_feedback=schedule.error_feedback,
        gradient_bucket_bytes=schedule.gradient_bucket_bytes,
        collective=schedule.collective,
        predicted=predicted,
    )


def write_plan(plan: Plan) -> str:
    """The plan's JSON: one line a stage, so that it can be read and edited."""
    head: dict[str, Any] = {
        "format": plan.format,
        "model": {"name": plan.model.name, "sequence_length": plan.model.sequence_length},
        "cluster": {"name": plan.cluster.name, "devices": plan.cluster.devices},
        "sequences": plan.sequences,
        "dtype": plan.dtype,
        "gradient_dtype": plan.gradient_dtype,
        "backend": plan.backend,
        "schedule": plan.schedule,
        "skeleton": plan.skeleton,
        "without": list(plan.without),
        "accumulation": plan.accumulation,
        "recovery_buffer": plan.recovery_buffer,
        "prefetch": plan.prefetch,
    }
    if plan.memory_budget_bytes is not None:
        head["memory_budget"] = f"{plan.memory_budget_bytes}B"
    if plan.passes is not None:
        head["passes"] = list(plan.passes)
    if plan.average_every is not None:
        head["average_every"] = plan.average_every
    if plan.clip_norm is not None:
        head["clip_norm"] = plan.clip_norm
    if plan.overflow != "step":
        head["overflow"] = plan.overflow
    if plan.recover_heads is not None:
        head["recover_heads"] = plan.recover_heads
    if plan.collective is not None:
        head["collective"] = plan.collective
    if plan.sequence_parallel:
        head["sequence_parallel"] = True
    head |= _wires(plan)
    head |= _bucket(plan)
    if plan.predicted is not None:
        head["predicted"] = vars(plan.predicted)
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    lines.append('  "replicas": [')
    for number, replica in enumerate(plan.replicas):
        lines.append(f'    {{"count": {replica.count}, "micro_batches": {replica.micro_batches},')
        lines.append('     "stages": [')
        stages = [f"       {json.dumps(_said(stage))}" for stage in replica.stages]
        lines.append(",\n".join(stages))
        lines.append("     ]}" + "," * (number < len(plan.replicas) - 1))
    return "\n".join(["{", *lines, "  ]", "}", ""])


def _said(stage: PlanStage) -> dict[str, Any]:
    """A stage's fields; one that is left out by default is left out."""
    return {name: value for name, value in vars(stage).items() if value is not None}


def load_plan(path: Path | str) -> Plan:
    """The plan of a file; whatever is wrong with it is one SpecError."""
    path = Path(path)
    if path.suffix == ".toml":
        raise SpecError(
            "it is TOML, as a job is, and not a plan (.json)",
            place=str(path),
            fix=f"write a plan with `ratrain plan {path} -o plan.json`",
        )
    return load(Plan, *read_json_table(path))


def parse_plan(text: str, file: str) -> Plan:
    """The plan of a text."""
    return load(Plan, *as_table(*parse_json(text, file)))


def is_uneven(plan: Plan) -> bool:
    """Whether stages differ in tensor degree or micro-batch, or replicas in anything: what no
    layout can say, of whichever devices."""
    degrees = {(s.tensor, s.micro_batch) for replica in plan.replicas for s in replica.stages}
    replicas = {
        (replica.micro_batches, tuple((s.layers, s.recovery) for s in replica.stages))
        for replica in plan.replicas
    }
    return len(degrees) > 1 or len(replicas) > 1


def to_candidate(plan: Plan, file: str) -> Candidate:
    """The candidate that a plan of replicas divided alike describes. Raises a SpecError for what
    cannot run, or not yet."""
    place = Place(file)
    require_strategy(plan, place)
    stages = _alike(plan, place)
    tensor, size = stages[0].tensor, stages[0].micro_batch
    groups = [_devices_of(plan, stage, place) for stage in range(len(stages))]
    pipeline = len(dict.fromkeys(map(tuple, groups)))
    data = sum(replica.count for replica in plan.replicas)
    require_round(groups, pipeline, place.at("replicas").at(0))
    layers = tuple(stage.layers for stage in stages)
    layout = LayoutSpec(
        pipeline, data, tensor, len(stages) // pipeline, layers, plan.sequence_parallel
    )
    job = _job_of_layout(plan, layout, size, place)
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
    return Candidate(
        job,
        Placement(job.cluster.spec, layout, order),
        replace(chosen, sharding=mode.sharding),
        tuple(Recovery(stage.recovery) for stage in stages),
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


def require_strategy(plan: Plan, place: Place) -> None:
    """Refuses a schedule that no strategy has."""
    try:
        strategy(plan.schedule, plan.without)
    except SpecError as error:
        raise SpecError(error.what, place=str(place.at("schedule")), fix=error.fix) from None


def require_prefetch(plan: Plan, chosen: Strategy, place: Place) -> None:
    """Refuses a plan that contradicts its schedule."""
    if chosen.prefetch != plan.prefetch:
        value = chosen.prefetch
        raise SpecError(
            f"the schedule {plan.schedule!r} has prefetch {value!r}",
            place=str(place.at("prefetch")),
            fix=f"write {json.dumps(value)}"
            + (f', or add "{PREFETCH}" to without' if value else ""),
        )


def require_chunks(chosen: Strategy, here: Place) -> None:
    """Refuses several stages on a device where the compute order places one."""
    if not SKELETONS[chosen.skeleton].chunks:
        raise SpecError(
            f"{chosen.skeleton} places one stage on a device, and devices repeat",
            place=str(here),
            fix='give each stage its own devices, or use the schedule "interleaved"',
        )


def state_mode(plan: Plan, place: Place) -> StateMode:
    """Who owns what, as the first stage has it."""
    mode = StateMode(plan.replicas[0].stages[0].sharding, plan.accumulation == "sharded")
    if mode.sharded_gradients and mode.sharding < 2:
        raise SpecError(
            "sharded accumulation needs sharding 2 or 3",
            place=str(place.at("accumulation")),
            fix='write "local"',
        )
    return mode


def require_buckets(plan: Plan, job: JobSpec, chosen: Strategy, place: Place) -> None:
    """Refuses buckets where gradients cannot leave in them."""
    require_bucketable(job, chosen)
    if plan.gradient_bucket_bytes is not None and plan.accumulation == "local":
        raise SpecError(
            "with local accumulation every rank keeps whole gradients: buckets cannot be used",
            place=str(place.at("gradient_bucket")),
            fix='leave it out, or write accumulation "sharded"',
        )


def job_of_plan(plan: Plan, layout: LayoutSpec | None, size: int, place: Place) -> JobSpec:
    """The job that a plan is about, with micro-batches of that size."""
    table: dict[str, Any] = {
        "model": vars(plan.model),
        "cluster": vars(plan.cluster),
        "batch": {"sequences": plan.sequences, "micro_batch": size},
        "schedule": {
            "name": plan.schedule,
            "without": list(plan.without),
            "skeleton": plan.skeleton,
            "backend": plan.backend,
            "recovery_buffer": plan.recovery_buffer,
            "dtype": plan.dtype,
            "gradient_dtype": plan.gradient_dtype,
        },
    }
    if layout is not None:
        table["layout"] = {**vars(layout), "layers": list(layout.layers)}
    if plan.memory_budget_bytes is not None:
        table["schedule"]["memory_budget"] = f"{plan.memory_budget_bytes}B"
    if plan.passes is not None:
        table["schedule"]["passes"] = list(plan.passes)
    if plan.collective is not None:
        table["schedule"]["collective"] = plan.collective
    table["schedule"] |= _wires(plan) | _bucket(plan)
    job = job_from_table(table, place, Path(place.file))
    return replace(
        job,
        train=replace(job.train, clip_norm=plan.clip_norm, overflow=plan.overflow),
        schedule=replace(
            job.schedule, recover_heads=plan.recover_heads, average_every=plan.average_every
        ),
    )


def _wires(plan: Plan) -> dict[str, Any]:
    """The wire types that a plan names, and error feedback where it has that."""
    wires = {"gradient_wire": plan.gradient_wire, "boundary_wire": plan.boundary_wire}
    named: dict[str, Any] = {key: wire for key, wire in wires.items() if wire is not None}
    return named | ({"error_feedback": True} if plan.error_feedback else {})


def _bucket(plan: Plan) -> dict[str, str]:
    """The bucket that a plan names."""
    size_bytes = plan.gradient_bucket_bytes
    return {} if size_bytes is None else {"gradient_bucket": f"{size_bytes}B"}


def _alike(plan: Plan, place: Place) -> tuple[PlanStage, ...]:
    """The stages of the first replica, where all agree on what must be equal today."""
    here = place.at("replicas")
    if not plan.replicas or not plan.replicas[0].stages:
        raise SpecError("no stages", place=str(here), fix="give one replica with one stage")
    first = plan.replicas[0].stages
    for number, replica in enumerate(plan.replicas):
        at = here.at(number)
        if len(replica.stages) != len(first):
            raise SpecError(
                f"{len(replica.stages)} stages, the first replica has {len(first)}: unequally "
                f"divided "
                "replicas cannot run yet",
                place=str(at),
                fix="divide all replicas alike",
            )
        for index, (stage, same) in enumerate(zip(replica.stages, first, strict=True)):
            for name in ("tensor", "micro_batch", "sharding"):
                if getattr(stage, name) != getattr(first[0], name):
                    raise SpecError(
                        f"{name} {getattr(stage, name)} here, {getattr(first[0], name)} on the "
                        f"first stage: unequal stages cannot run yet",
                        place=str(at.at("stages").at(index).at(name)),
                        fix=f"write {getattr(first[0], name)}",
                    )
            if stage.offload is not None:
                raise SpecError(
                    f"offload to {stage.offload!r} cannot run yet",
                    place=str(at.at("stages").at(index).at("offload")),
                    fix="leave it out",
                )
            for name in ("layers", "recovery"):
                if getattr(stage, name) != getattr(same, name):
                    raise SpecError(
                        f"{name} {getattr(stage, name)} here, {getattr(same, name)} in the first "
                        "replica: unequally divided replicas cannot run yet",
                        place=str(at.at("stages").at(index).at(name)),
                        fix=f"write {json.dumps(getattr(same, name))}",
                    )
    return first


def _devices_of(plan: Plan, stage: int, place: Place) -> list[int]:
    """A stage's devices over all replicas, replica by replica."""
    return [
        device
        for number in range(len(plan.replicas))
        for device in devices_of_stage(plan, number, stage, place)
    ]


def devices_of_stage(plan: Plan, number: int, stage: int, place: Place) -> list[int]:
    """The devices of a stage over all replicas of an entry."""
    replica = plan.replicas[number]
    held = replica.stages[stage]
    at = str(place.at("replicas").at(number).at("stages").at(stage).at("devices"))
    members = read_ranges(held.devices, at, plan.cluster.devices)
    if len(members) != replica.count * held.tensor:
        raise SpecError(
            f"{len(members)} devices for {replica.count} replicas x tensor {held.tensor}",
            place=at,
            fix=f"list {replica.count * held.tensor}",
        )
    return members


def require_round(groups: Sequence[Sequence[int]], pipeline: int, here: Place) -> None:
    """Refuses stages that come back to devices in another order than they left them."""
    for number, group in enumerate(groups):
        if len(groups) % pipeline or list(group) != list(groups[number % pipeline]):
            raise SpecError(
                "stages must visit the same devices in the same order",
                place=str(here.at("stages").at(number).at("devices")),
                fix="give each stage its own devices",
            )


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
                f"{sum(r.count for r in plan.replicas)} replicas make {job.micro_batches}: "
                "replicas of unequal counts cannot run yet",
                place=str(place.at("replicas").at(number).at("micro_batches")),
                fix=f"write {job.micro_batches}",
            )
