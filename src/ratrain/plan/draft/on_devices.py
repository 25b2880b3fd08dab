"""Drafts on devices: the plans that a draft becomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from ratrain.describe.cluster import Device
from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.parts import Part
from ratrain.plan.draft.pools import Pool, Shape
from ratrain.plan.file.checks import require_runnable
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.links import Groups, Seats
from ratrain.plan.layout.placement import PlacedReplica, Served, folded
from ratrain.plan.layout.plan import Plan
from ratrain.readers.place import Place


def plans_of(job: JobSpec, pools: Sequence[Pool], draft: Draft) -> Iterator[Plan]:
    """The plans of a draft: with fast links inside replicas, and with fast links between them; of
    stages with members, inside stages and between them. One where these are the same; none where
    its tensor groups have no room, or no program says it."""
    shapes = [
        shape
        for part in draft.parts
        for shape in (part.posts if draft.has_members else [part.shape])
    ]
    seen: list[list[Groups]] = []
    for across in (False, True):
        groups = seated(pools, shapes, across=across)
        if groups is not None and groups not in seen:
            seen.append(groups)
            try:
                yield _plan(job, draft, chain.from_iterable(groups))
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


def _plan(job: JobSpec, draft: Draft, groups: Iterator[tuple[Device, ...]]) -> Plan:
    """The plan of parts on their devices, post by post."""
    replicas: list[PlacedReplica] = []
    for part, share in zip(draft.parts, draft.shares, strict=True):
        tensor = tuple(post.tensor for posts in part.posts for post in posts)
        replicas.append(
            PlacedReplica(
                LayoutSpec(
                    len(part.members),
                    len(draft.parts),
                    tensor[0],
                    layers=part.layers,
                    sequence_parallel=draft.divided,
                ),
                tensor,
                part.recovery,
                part.micro_batch,
                share,
                Seats((tuple(islice(groups, len(tensor))),), (0,)),
                serving=_serving(part, share),
            )
        )
    degree = max(degree for replica in replicas for degree in replica.tensor)
    whole = replace(job, layout=None, batch=Batch(job.batch.sequences, 1))
    chosen = strategy_of(replace(whole, layout=LayoutSpec(1, 1, degree)))
    made = Plan(
        whole,
        tuple(_numbered(folded(replicas))),
        replace(chosen, sharding=draft.state.sharding),
        draft.state,
        job.schedule.recovery_buffer,
        draft.divided,
    )
    require_runnable(made, Place(str(job.path or "job")))
    return made


def _serving(part: Part, share: int) -> tuple[tuple[Served, ...], ...]:
    """What the members of each stage serve; () where each has one."""
    if not part.has_members:
        return ()
    return tuple(
        (None,) if len(posts) == 1 else (*shares, *[()] * (len(posts) - len(shares)))
        for shares, posts in zip(part.serves(share), part.posts, strict=True)
    )


def _numbered(replicas: Iterable[PlacedReplica]) -> Iterator[PlacedReplica]:
    """Replicas with their numbers, as a plan file that lists them counts them."""
    first = 0
    for entry, replica in enumerate(replicas):
        last = first + len(replica.groups)
        yield replace(replica, seats=Seats(replica.groups, tuple(range(first, last))), entry=entry)
        first = last
