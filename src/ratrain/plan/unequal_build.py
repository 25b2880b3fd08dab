"""Drafts on devices: the plan that a draft becomes, and its plan file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ratrain.describe.cluster import Device
from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.enumerate import StateMode
from ratrain.plan.job_strategy import strategy_of
from ratrain.plan.plan_file import Plan, PlanMember, PlanReplica, PlanStage, Predicted
from ratrain.plan.plan_members import share_text
from ratrain.plan.plan_writing import plan_of_replicas
from ratrain.plan.ranges import write_ranges
from ratrain.plan.unequal_mixes import Draft
from ratrain.plan.unequal_pools import Pool, Shape
from ratrain.plan.uneven_checks import require_runnable
from ratrain.plan.uneven_setup import Groups, UnevenPlan, UnevenReplica
from ratrain.readers.place import Place


def plans_of(job: JobSpec, pools: Sequence[Pool], draft: Draft) -> Iterator[UnevenPlan]:
    """The plans of a draft: with fast links inside replicas, and with fast links between them,
    where these are two. None where its tensor groups have no room, or no program says it."""
    seen: list[list[Groups]] = []
    for stage_by_stage in (False, True):
        groups = seated(pools, [part.shape for part in draft.parts], across=stage_by_stage)
        if groups is not None and groups not in seen:
            seen.append(groups)
            try:
                yield _plan(job, pools, draft, groups)
            except (SpecError, ProgramError):  # its order or its passes cannot have it
                continue


def seated(pools: Sequence[Pool], shapes: Sequence[Shape], *, across: bool) -> list[Groups] | None:
    """The devices of each shape's posts: shape by shape, with fast links inside each; or `across`
    them, the first post of each first. None where hosts have no room for a tensor group."""
    free: list[dict[int, list[Device]]] = []
    for pool in pools:
        hosts: dict[int, list[Device]] = {}
        for device in pool.devices:
            hosts.setdefault(device.host, []).append(device)
        free.append(hosts)
    turns = [(n, s) for n, shape in enumerate(shapes) for s in range(len(shape))]
    if across:
        turns.sort(key=lambda turn: (turn[1], turn[0]))
    seats: dict[tuple[int, int], tuple[Device, ...]] = {}
    for number, stage in turns:
        post = shapes[number][stage]
        beside = (number - 1, stage) if across else (number, stage - 1)
        near = seats[beside][0].host if beside in seats else -1
        hosts = {h: left for h, left in free[post.pool].items() if len(left) >= post.tensor}
        if not hosts:
            return None
        host = near if near in hosts else max(hosts, key=lambda h: (len(hosts[h]), -h))
        taken, free[post.pool][host] = hosts[host][: post.tensor], hosts[host][post.tensor :]
        seats[number, stage] = tuple(taken)
    return [
        tuple(seats[number, stage] for stage in range(len(shape)))
        for number, shape in enumerate(shapes)
    ]


def _plan(job: JobSpec, pools: Sequence[Pool], draft: Draft, groups: list[Groups]) -> UnevenPlan:
    """The plan of parts on their devices; those that are alike are one entry."""
    alike: dict[object, UnevenReplica] = {}
    order: dict[object, int] = {}
    for number, (part, share) in enumerate(zip(draft.parts, draft.shares, strict=True)):
        posts = tuple((pools[post.pool].kind.name, post.tensor) for post in part.shape)
        key = posts, part.layers, part.recovery, part.micro_batch, share
        order.setdefault(key, len(order))
        layout = LayoutSpec(
            len(part.shape),
            len(draft.parts),
            part.shape[0].tensor,
            layers=part.layers,
            sequence_parallel=draft.divided,
        )
        same = UnevenReplica(
            layout,
            tuple(post.tensor for post in part.shape),
            part.recovery,
            part.micro_batch,
            share,
            (groups[number],),
            (),
            order[key],
        )
        known = alike.get(key)
        alike[key] = same if known is None else replace(known, groups=known.groups + same.groups)
    replicas: list[UnevenReplica] = []
    first = 0
    for same in alike.values():
        members = tuple(range(first, first + len(same.groups)))
        replicas.append(replace(same, members=members))
        first += len(members)
    widest = max(post.tensor for part in draft.parts for post in part.shape)
    return plan_of_draft(job, tuple(replicas), draft.state, tensor=widest, divided=draft.divided)


def plan_of_draft(
    job: JobSpec,
    replicas: tuple[UnevenReplica, ...],
    state: StateMode,
    *,
    tensor: int,
    divided: bool,
) -> UnevenPlan:
    """A job's plan with these replicas, of which `tensor` is the largest tensor degree; an error
    where no program says it."""
    whole = replace(job, layout=None, batch=Batch(job.batch.sequences, 1))
    chosen = strategy_of(replace(whole, layout=LayoutSpec(1, 1, tensor)))
    made = UnevenPlan(
        whole,
        replicas,
        replace(chosen, sharding=state.sharding),
        state,
        job.schedule.recovery_buffer,
        divided,
    )
    require_runnable(made, Place(str(job.path or "job")))
    return made


def file_of_plan(plan: UnevenPlan, predicted: Predicted | None = None) -> Plan:
    """The plan file of a plan of any replicas."""
    return plan_of_replicas(
        plan.job,
        plan.strategy,
        plan.mode,
        plan.buffer,
        [_entry(plan, replica) for replica in plan.replicas],
        sequence_parallel=plan.sequence_parallel,
        predicted=predicted,
    )


def _entry(plan: UnevenPlan, replica: UnevenReplica) -> PlanReplica:
    return PlanReplica(
        len(replica.members),
        replica.micro_batches,
        tuple(_stage(plan, replica, number) for number in range(replica.layout.stages)),
    )


def _stage(plan: UnevenPlan, replica: UnevenReplica, number: int) -> PlanStage:
    layers = replica.layout.layers
    assert isinstance(layers, tuple)
    members = [
        PlanMember(
            write_ranges([d.index for groups in replica.groups for d in groups[rank]]),
            replica.tensor[rank],
            share_text(replica.serves[rank]),
            mode.value,
        )
        for (stage, rank), mode in zip(replica.held, replica.recovery, strict=True)
        if stage == number
    ]
    several = PlanStage(
        layers=layers[number],
        micro_batch=replica.micro_batch * replica.joined_of(replica.ranks_of(number)[0]),
        sharding=plan.mode.sharding,
        members=tuple(members),
    )
    if len(members) > 1:
        return several
    only = several.only
    return replace(
        several, devices=only.devices, tensor=only.tensor, recovery=only.recovery, members=None
    )
