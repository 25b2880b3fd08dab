"""Drafts on devices: the plans that a draft becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ratrain.describe.cluster import Device
from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.file.checks import require_runnable
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.links import Groups, Seats
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.replica import PlacedReplica, Served, folded
from ratrain.plan.search.draft import Draft
from ratrain.plan.search.members import MembersDraft, MembersPart
from ratrain.plan.search.pools import Pool, Shape
from ratrain.program.replicas import Recovery
from ratrain.readers.place import Place


def plans_of(job: JobSpec, pools: Sequence[Pool], draft: Draft) -> Iterator[Plan]:
    """The plans of a draft: with fast links inside replicas, and with fast links between them,
    where these are two. None where its tensor groups have no room, or no program says it."""
    shapes = [part.shape for part in draft.parts]
    return _placed(pools, shapes, lambda groups: _plan(job, draft, groups))


def _placed(
    pools: Sequence[Pool], shapes: Sequence[Shape], plan: Callable[[list[Groups]], Plan]
) -> Iterator[Plan]:
    """What `plan` makes of the shapes' devices: with fast links inside shapes, then across them."""
    seen: list[list[Groups]] = []
    for across in (False, True):
        groups = seated(pools, shapes, across=across)
        if groups is not None and groups not in seen:
            seen.append(groups)
            try:
                yield plan(groups)
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


def _plan(job: JobSpec, draft: Draft, groups: list[Groups]) -> Plan:
    """The plan of parts on their devices."""
    replicas = [
        PlacedReplica(
            LayoutSpec(
                len(part.shape),
                len(draft.parts),
                part.shape[0].tensor,
                layers=part.layers,
                sequence_parallel=draft.divided,
            ),
            tuple(post.tensor for post in part.shape),
            part.recovery,
            part.micro_batch,
            share,
            Seats((of_part,), (0,)),
        )
        for part, share, of_part in zip(draft.parts, draft.shares, groups, strict=True)
    ]
    return _plan_of_draft(job, replicas, draft.state, divided=draft.divided)


def plans_of_members(job: JobSpec, pools: Sequence[Pool], draft: MembersDraft) -> Iterator[Plan]:
    """The same of a draft whose stages have members: with fast links inside stages, and with fast
    links between them."""
    shapes = [shape for part in draft.parts for shape in part.posts]
    return _placed(pools, shapes, lambda seats: _plan_of_members(job, draft, seats))


def _plan_of_members(job: JobSpec, draft: MembersDraft, seats: list[Groups]) -> Plan:
    """`seats`: of each stage of each part the devices of its members."""
    of_stages, replicas = iter(seats), list[PlacedReplica]()
    for part, share in zip(draft.parts, draft.shares, strict=True):
        tensor = tuple(post.tensor for shape in part.posts for post in shape)
        layout = LayoutSpec(
            len(part.shapes),
            len(draft.parts),
            tensor[0],
            layers=part.layers,
            sequence_parallel=draft.divided,
        )
        held = zip(part.recovery, part.holders, strict=True)
        modes = [mode for of, only in held for mode in (*of, *(Recovery.NONE for _ in only))]
        groups = tuple(group for _ in part.shapes for group in next(of_stages))
        replica = PlacedReplica(
            layout,
            tensor,
            tuple(modes),
            part.micro_batch,
            share,
            Seats((groups,), (0,)),
            serving=_serving(part, share),
        )
        replicas.append(replica)
    return _plan_of_draft(job, replicas, draft.state, divided=draft.divided)


def _serving(part: MembersPart, share: int) -> tuple[tuple[Served, ...], ...]:
    """What the members of each stage serve; () where each has one."""
    if not part.has_members:
        return ()
    return tuple(
        (None,) if len(shares) + len(only) == 1 else (*shares, *(() for _ in only))
        for shares, only in zip(part.serves(share), part.holders, strict=True)
    )


def _plan_of_draft(
    job: JobSpec, replicas: Sequence[PlacedReplica], state: StateMode, *, divided: bool
) -> Plan:
    """A job's plan with these replicas; an error where no program says it."""
    tensor = max(degree for replica in replicas for degree in replica.tensor)
    whole = replace(job, layout=None, batch=Batch(job.batch.sequences, 1))
    chosen = strategy_of(replace(whole, layout=LayoutSpec(1, 1, tensor)))
    made = Plan(
        whole,
        tuple(_numbered(folded(replicas))),
        replace(chosen, sharding=state.sharding),
        state,
        job.schedule.recovery_buffer,
        divided,
    )
    require_runnable(made, Place(str(job.path or "job")))
    return made


def _numbered(replicas: Iterable[PlacedReplica]) -> Iterator[PlacedReplica]:
    """Replicas with their numbers, as a plan file that lists them counts them."""
    first = 0
    for entry, replica in enumerate(replicas):
        last = first + len(replica.groups)
        yield replace(replica, seats=Seats(replica.groups, tuple(range(first, last))), entry=entry)
        first = last
