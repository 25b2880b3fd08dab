"""Devices that may stand for each other, and the shapes that a replica can have on them.

A pool holds the devices of one kind in hosts of one kind. A post is what holds a stage: a number of
devices of a pool, as one tensor group in one host. A shape is the posts of a replica, stage by
stage. Links are looked up between the first devices of pools, so they are exact where hosts hold
one device and a guess elsewhere; what is simulated has its true links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from ratrain.describe.cluster import ClusterSpec, Device, Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.layout.enumerate import degrees_up_to
from ratrain.plan.layout.links import speed

FEW = 16
"""Devices up to which stages may have several members, and nearly every draft is timed."""


class Post(NamedTuple):
    """One tensor group of a pool's devices: a rank alone, where `tensor` is 1. `divided`: in
    sequence parallelism."""

    pool: int
    tensor: int
    divided: bool = False

    @property
    def layout(self) -> LayoutSpec:
        """The layout of a single stage on it."""
        return LayoutSpec(1, 1, self.tensor, sequence_parallel=self.divided)


Shape = tuple[Post, ...]


class StageMembers(NamedTuple):
    """The posts of a stage: those that compute, and those that only hold it."""

    computing: Shape
    holding: Shape = ()

    @property
    def posts(self) -> Shape:
        return self.computing + self.holding


Pipeline = tuple[StageMembers, ...]
"""The members of each stage of a replica."""


def pipeline_of(shape: Shape) -> Pipeline:
    """Stages of one member each."""
    return tuple(StageMembers((post,)) for post in shape)


@dataclass(frozen=True)
class Pool:
    """Devices of one kind, in hosts of one kind at one place."""

    kind: DeviceKind
    devices: tuple[Device, ...]

    @cached_property
    def on_host(self) -> int:
        """The most of its devices that one host has."""
        return max(Counter(device.host for device in self.devices).values())


def pools_of(devices: Sequence[Device]) -> tuple[Pool, ...]:
    """The pools of devices, in the order of their first ones."""
    alike: dict[object, list[Device]] = {}
    for device in devices:
        key = device.kind.name, device.host_kind.name, device.room, device.site
        alike.setdefault(key, []).append(device)
    return tuple(Pool(group[0].kind, tuple(group)) for group in alike.values())


class PoolLinks:
    """The links between posts, as far as pools tell."""

    def __init__(self, cluster: ClusterSpec, pools: Sequence[Pool]) -> None:
        self._cluster, self._pools = cluster, pools
        self.boundary = cache(self._boundary)
        self.inside = cache(self._inside)
        self.slowest = cache(self._slowest)
        self._numbers: dict[Link, int] = {}
        self.rates_bytes_per_s: list[float] = []

    def number(self, link: Link) -> int:
        """The number of a link, of its divided parts too; equal ones have the same."""
        number = self._numbers.setdefault(link, len(self._numbers))
        if number == len(self.rates_bytes_per_s):
            self.rates_bytes_per_s.append(link.bandwidth_bytes_per_s)
        return number

    def _shared(self, link: Link, pool: Pool, members: int) -> Link:
        """A link's part where all groups of a host send at once."""
        groups = pool.on_host / members
        return link if link.shared_by == "device" or groups == 1 else link.divided(groups)

    def _boundary(self, source: int, target: int) -> Link | None:
        """From a post of one pool to one of another, or of the same; None where there is none."""
        here, there = self._pools[source], self._pools[target]
        if source != target:
            return self._shared(self._cluster.link(here.devices[0], there.devices[0]), here, 1)
        if len(here.devices) == 1:
            return None
        return self._shared(self._cluster.link(*here.devices[:2]), here, 1)

    def _inside(self, pool: int, tensor: int) -> Link | None:
        """In a tensor group."""
        here = self._pools[pool]
        if tensor == 1:
            return None
        return self._shared(self._cluster.link(*here.devices[:2]), here, tensor)

    def _slowest(self, pools: frozenset[int]) -> Link:
        """The slowest link that a reduction over these pools crosses."""
        ends = [self._pools[pool] for pool in sorted(pools)]
        links = [
            self._shared(self._cluster.link(here.devices[0], there.devices[-1]), sender, 1)
            for place, here in enumerate(ends)
            for there in ends[place:]
            if here.devices[0] is not there.devices[-1]
            for sender in (here, there)
        ]
        return min(links, key=speed)

    @cached_property
    def nearer_inside(self) -> frozenset[int]:
        """The pools whose devices have faster links to each other than pools have."""
        every = self.slowest(frozenset(range(len(self._pools))))
        return frozenset(
            number
            for number, pool in enumerate(self._pools)
            if len(pool.devices) > 1 and speed(self.slowest(frozenset([number]))) > speed(every)
        )


def tensor_degrees(job: JobSpec, pool: Pool) -> list[int]:
    """Degrees that divide the model and that a host of the pool has room for."""
    return degrees_up_to(job, pool.on_host)


def in_division(pipeline: Pipeline, divided: bool) -> Pipeline:
    """The pipeline with sequence parallelism in all of its tensor groups, or in none."""

    def of(shape: Shape) -> Shape:
        return tuple(Post(post.pool, post.tensor, divided and post.tensor > 1) for post in shape)

    return tuple(StageMembers(of(stage.computing), of(stage.holding)) for stage in pipeline)


def used_of(shape: Shape, pools: int) -> tuple[int, ...]:
    """How many devices of each pool a shape takes."""
    used = [0] * pools
    for post in shape:
        used[post.pool] += post.tensor
    return tuple(used)
