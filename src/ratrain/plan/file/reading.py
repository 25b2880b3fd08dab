"""Plan files read as plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ratrain.describe.cluster import Device
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.job_checks import check_heads, check_layers, check_sequence
from ratrain.describe.ranges import read_ranges
from ratrain.describe.units import counted
from ratrain.errors import SpecError
from ratrain.plan.file.checks import (
    job_of_plan,
    named_at,
    require_buckets,
    require_prefetch,
    require_round,
    require_runnable,
    state_mode,
)
from ratrain.plan.file.form import (
    PlanFile,
    PlanMember,
    PlanReplica,
    is_uneven,
    placed_members,
    served_by_members,
)
from ratrain.plan.layout.jobs import require_tieable, strategy_of
from ratrain.plan.layout.links import NO_SEATS, Seats
from ratrain.plan.layout.placement import PlacedReplica, Placement, Served, folded
from ratrain.plan.layout.plan import Plan, plan_of_layout, require_one_dtype
from ratrain.program.replicas import Recovery
from ratrain.program.strategies import strategy
from ratrain.readers.faults import Faults
from ratrain.readers.place import Place


def plan_of_file(plan: PlanFile, file: str, planned_for: JobSpec | None = None) -> Plan:
    """The plan that a plan file describes. Raises a SpecError for what contradicts itself, and for
    what no program can say. `planned_for`: the job that it was planned for, where that is known;
    else the file says what it is about."""
    place = Place(file, form="json")
    with named_at(place.at("schedule"), SpecError):
        strategy(plan.schedule, plan.without)
    _require_stages(plan, place.at("replicas"))
    mode = state_mode(plan, place)
    job = job_of_plan(plan, place, planned_for)
    devices = _devices(plan, place.at("replicas"))
    replicas = folded(_each(plan, job, devices, place), by_site=bool(job.sites))
    _require_sequences(plan, place)
    layouts = [replica.layout_of(rank) for replica in replicas for rank in range(replica.ranks)]
    widest = max(layouts, key=lambda layout: layout.tensor)
    chosen = strategy_of(replace(job, layout=widest))  # which asks for the tensor degree
    require_prefetch(plan, chosen, place)
    require_tieable(job, max(replica.layout.pipeline for replica in replicas))
    chosen = replace(chosen, sharding=mode.sharding)
    uneven, buffer = is_uneven(plan), plan.recovery_buffer
    if uneven and plan.gradient_bucket_bytes is not None:
        raise SpecError(
            "replicas or stages that differ cannot send gradients in buckets yet",
            place=str(place.at("gradient_bucket")),
            fix="leave it out",
        )
    made = Plan(job, replicas, chosen, mode, buffer, plan.sequence_parallel)
    require_runnable(made, place)
    if uneven or len(set(made.setup.site_counts.values())) > 1:
        return made
    job = replace(
        job, layout=made.alike.layout, batch=replace(job.batch, micro_batch=made.alike.micro_batch)
    )
    require_buckets(plan, job, chosen, place)
    placement = Placement(job.cluster.spec, made.alike.layout, _rank_by_rank(made), bool(job.sites))
    recovery = made.alike.recovery
    return plan_of_layout(job, placement, chosen, mode, recovery=recovery, buffer=buffer)


def _rank_by_rank(plan: Plan) -> tuple[Device, ...]:
    """The devices of replicas that are divided alike as a layout counts them: those of a stage
    together, replica by replica."""
    of_ranks = zip(*plan.by_number, strict=True)
    return tuple(device for groups in of_ranks for group in groups for device in group)


def _require_stages(plan: PlanFile, here: Place) -> None:
    """Refuses what the stages of one program, or of one replica, must have in common."""
    if not plan.replicas:
        raise SpecError("no stages", place=str(here), fix="give one replica with one stage")
    faults = Faults()
    for number, replica in enumerate(plan.replicas):
        with faults:
            _require_stages_of(plan, replica, here.at(number))
    faults.raise_all()


def _require_stages_of(plan: PlanFile, replica: PlanReplica, here: Place) -> None:
    if not replica.stages:
        raise SpecError("no stages", place=str(here), fix="give the replica one stage")
    sharding = (plan.replicas[0].stages or replica.stages)[0].sharding
    for index, stage in enumerate(replica.stages):
        at = here.at("stages").at(index)
        _require_size(replica, stage.micro_batch, at.at("micro_batch"))
        if stage.sharding != sharding:
            raise SpecError(
                f"sharding {stage.sharding} here, {sharding} on the first stage: the level is one "
                "for the whole plan",
                place=str(at.at("sharding")),
                fix=f"write {sharding}",
            )
        if stage.offload is not None:
            raise SpecError(
                f"offload to {stage.offload!r} cannot run yet",
                place=str(at.at("offload")),
                fix="leave it out",
            )


def _require_size(replica: PlanReplica, size: int, at: Place) -> None:
    """Refuses a micro-batch of which parts could not be passed on to the other stages."""
    smallest = replica.micro_batch
    if any(max(size, other.micro_batch) % min(size, other.micro_batch) for other in replica.stages):
        sizes = ", ".join(map(str, sorted({stage.micro_batch for stage in replica.stages})))
        raise SpecError(
            f"micro_batch {size} here, and {sizes} on stages of this replica: where "
            "they meet, the larger one must be a whole multiple of the smaller one",
            place=str(at),
            fix=f"write {smallest}, or a multiple of it that divides the others or that they "
            "divide",
        )
    if replica.micro_batches * smallest % size:
        raise SpecError(
            f"micro_batch {size} here, and the replica's {replica.micro_batches} x {smallest} "
            "sequences are no multiple of it",
            place=str(at),
            fix=f"write {smallest}, or give the replica other micro_batches",
        )


Devices = list[list[list[int]]]
"""Of each stage of an entry and each of its members, over all replicas of the entry."""


def _devices(plan: PlanFile, here: Place) -> list[Devices]:
    """Those of each entry. Refuses a device that is named twice, but by a later round of one
    replica's stages."""
    known: dict[int, tuple[int, int]] = {}
    of_entries: list[Devices] = []
    for number, replica in enumerate(plan.replicas):
        of_entries.append([])
        rounds = set[str]()
        for index, stage in enumerate(replica.stages):
            placed = list(placed_members(stage, here.at(number, "stages", index)))
            lists = [_devices_of(plan, replica, *member) for member in placed]
            of_entries[number].append(lists)
            if str(lists) in rounds:
                continue
            rounds.add(str(lists))
            for devices, (_, at) in zip(lists, placed, strict=True):
                for device in devices:
                    if device in known:
                        entry, before = known[device]
                        raise SpecError(
                            f"device {device} is in stage {before} of entry {entry} already",
                            place=str(at.at("devices")),
                            fix="list each device once",
                        )
                    known[device] = number, index
    return of_entries


def _devices_of(plan: PlanFile, replica: PlanReplica, member: PlanMember, at: Place) -> list[int]:
    """A member's devices, of all replicas of an entry."""
    where, count = str(at.at("devices")), replica.count * member.tensor
    devices = read_ranges(member.devices, where, plan.cluster.devices)
    if len(devices) != count:
        raise SpecError(
            f"{counted(len(devices), 'device')} for {counted(replica.count, 'replica')} x "
            f"tensor {member.tensor}",
            place=where,
            fix=f"list {count}",
        )
    return devices


def _require_sequences(plan: PlanFile, place: Place) -> None:
    """Refuses replicas whose micro-batches are not the whole batch."""
    parts = [
        (replica.count, replica.micro_batches, replica.micro_batch) for replica in plan.replicas
    ]
    total = sum(count * batches * size for count, batches, size in parts)
    if total != plan.sequences:
        words = " + ".join(f"{count} x {batches} x {size}" for count, batches, size in parts)
        raise SpecError(
            f"replicas x micro-batches x their size are {words} = {total} sequences, not "
            f"{plan.sequences}",
            place=str(place.at("sequences")),
            fix=f"write {total}, or give replicas other micro_batches",
        )


def _each(
    plan: PlanFile, job: JobSpec, of_entries: Sequence[Devices], place: Place
) -> Iterator[PlacedReplica]:
    """Every single replica."""
    devices = job.cluster.members()
    number = 0
    for entry, replica in enumerate(plan.replicas):
        described, lists, at = _described(plan, job, entry, of_entries[entry], place)
        for copy in range(replica.count):
            groups = tuple(
                tuple(devices[i] for i in of_rank[copy * degree : (copy + 1) * degree])
                for of_rank, degree in zip(lists, described.tensor, strict=True)
            )
            require_one_dtype(job, groups, (str(where.at("devices")) for where in at))
            yield replace(described, seats=Seats((groups,), (number,)))
            number += 1


def _described(
    plan: PlanFile, job: JobSpec, entry: int, lists: Devices, place: Place
) -> tuple[PlacedReplica, list[list[int]], list[Place]]:
    """A replica of an entry, without its devices; and for each of its ranks the devices of all
    replicas of the entry, and the place of who says so."""
    replica, here = plan.replicas[entry], place.at("replicas", entry)
    pipeline = len(dict.fromkeys(map(str, lists)))
    require_round(lists, pipeline, here)
    placed = [
        list(placed_members(stage, here.at("stages", index)))
        for index, stage in enumerate(replica.stages)
    ]
    ranks = [member for of_stage in placed[:pipeline] for member in of_stage]
    tensor, at = tuple(member.tensor for member, _ in ranks), [at for _, at in ranks]
    layout = LayoutSpec(
        pipeline,
        sum(each.count for each in plan.replicas),
        tensor[0],
        len(lists) // pipeline,
        tuple(stage.layers for stage in replica.stages),
        plan.sequence_parallel,
    )
    check_layers(layout, job.model.spec, here.at("layers"))
    for degree, where in zip(tensor, at, strict=True):
        check_heads(replace(layout, tensor=degree), job.model.spec, where)
    _require_division(plan, job, layout, place)
    recovery = tuple(Recovery(member.recovery) for of_stage in placed for member, _ in of_stage)
    described = PlacedReplica(
        layout,
        tensor,
        recovery,
        replica.micro_batch,
        replica.micro_batches,
        NO_SEATS,
        entry,
        _serving(replica, pipeline, here),
        _joined(replica, pipeline, here),
    )
    return described, [devices for of_stage in lists[:pipeline] for devices in of_stage], at


def _serving(replica: PlanReplica, pipeline: int, here: Place) -> tuple[tuple[Served, ...], ...]:
    """For each place in the pipeline what its members serve; () where each has one member."""
    shares = [
        served_by_members(replica, stage, here.at("stages").at(index))
        for index, stage in enumerate(replica.stages)
    ]
    for index, of_stage in enumerate(shares):
        if of_stage != shares[index % pipeline]:
            raise SpecError(
                f"members serve other micro-batches than on stage {index % pipeline}, whose "
                "devices these are",
                place=str(here.at("stages").at(index).at("members")),
                fix="let each serve the same on all of its stages",
            )
    return tuple(shares[:pipeline]) if max(map(len, shares)) > 1 else ()


def _joined(replica: PlanReplica, pipeline: int, here: Place) -> tuple[int, ...]:
    """For each rank how many of the replica's micro-batches it computes at once; () where all
    stages compute one by one."""
    if all(stage.micro_batch == replica.micro_batch for stage in replica.stages):
        return ()
    for index, stage in enumerate(replica.stages):
        if stage.micro_batch == replica.micro_batch:
            continue
        what = (
            (len(stage.held_by) > 1, "lists several members", "list one member"),
            (len(replica.stages) > pipeline, "has devices of other stages", "give it devices"),
        )
        for is_so, words, fix in what:
            if is_so:
                raise SpecError(
                    f"micro_batch {stage.micro_batch} on a stage that {words}: it cannot join "
                    f"micro-batches of {replica.micro_batch}",
                    place=str(here.at("stages").at(index).at("micro_batch")),
                    fix=f"write {replica.micro_batch}, or {fix} of its own",
                )
    return tuple(
        stage.micro_batch // replica.micro_batch for stage in replica.stages for _ in stage.held_by
    )


def _require_division(plan: PlanFile, job: JobSpec, layout: LayoutSpec, place: Place) -> None:
    """Refuses a sequence that some group cannot divide, where groups divide it."""
    degrees = {
        member.tensor
        for replica in plan.replicas
        for stage in replica.stages
        for member in stage.held_by
    }
    asked, length = job.schedule.sequence_parallel, job.model.sequence_length
    here = place.at("sequence_parallel")
    for tensor in sorted(degrees - {1}) or [1]:
        check_sequence(asked, length, replace(layout, tensor=tensor), here)
