"""Devices that may stand for each other, and the shapes that a replica can have on them.

A pool holds the devices of one kind in hosts of one kind. A post is what holds a stage: a number of
devices of a pool, as one tensor group in one host. A shape is the posts of a replica, stage by
stage. Links are looked up between the first devices of pools, so they are exact where hosts hold
one device and a guess elsewhere; what is simulated has its true links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, islice, permutations, product
from typing import NamedTuple

from ratrain.describe.cluster import ClusterSpec, Device, Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.layout.geometry import speed
from ratrain.plan.price.kind_speed import kind_speed

ALL_ORDERS = 3_000
"""Where there are more shapes than this, those alone are tried that keep a pool's posts together,
all of one tensor degree."""
FEW = 16
"""Devices up to which all of these are tried. On more, shapes have one tensor degree, pools from
fast to slow or from slow to fast, and a round number of a pool's posts (`round_counts`)."""
RUNS = {1: 64, 2: 6, 3: 2}
"""Of shapes of one pool, two, and three: posts of a pool at most. Of more pools: one."""
MOST_BLOCKS = 1_600
"""Shapes tried at most on more devices: those of the fewest pools."""


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
    if job.train.overflow == "unit" or job.train.rule.whole:
        return [1]
    model = job.model.spec
    counts = {model.heads, model.kv_heads}
    if job.backend.divides_everything:
        counts |= {model.ffn, model.vocab}
    return [t for t in range(1, pool.on_host + 1) if all(count % t == 0 for count in counts)]


def shapes_of(job: JobSpec, pools: Sequence[Pool]) -> list[Shape]:
    """Every order of posts on the pools' devices, or those that keep a pool's posts together."""
    posts = [
        Post(number, tensor)
        for number, pool in enumerate(pools)
        for tensor in tensor_degrees(job, pool)
    ]
    if sum(len(pool.devices) for pool in pools) > FEW:
        return list(islice(_round_blocks(job, posts, pools), MOST_BLOCKS))
    every: list[Shape] = []
    for shape in _orders(posts, [len(pool.devices) for pool in pools], job.model.spec.layers):
        every.append(shape)
        if len(every) > ALL_ORDERS:
            return list(_blocks(posts, pools, job.model.spec.layers))
    return every


def _orders(posts: Sequence[Post], free: list[int], layers: int) -> Iterator[Shape]:
    """Shapes of one stage, then of two, and so on, of what is free."""
    waiting: list[Shape] = [()]
    for _ in range(min(layers, sum(free))):
        longer: list[Shape] = []
        for shape in waiting:
            used = used_of(shape, len(free))
            for post in posts:
                if used[post.pool] + post.tensor <= free[post.pool]:
                    longer.append((*shape, post))
                    yield longer[-1]
        waiting = longer


def _blocks(posts: Sequence[Post], pools: Sequence[Pool], layers: int) -> Iterator[Shape]:
    """Shapes of a run of equal posts for each pool that they use, the pools in any order."""
    runs: list[list[Shape]] = [[] for _ in pools]
    for post in posts:
        most = len(pools[post.pool].devices) // post.tensor
        runs[post.pool] += [(post,) * count for count in range(1, most + 1)]
    for size in range(1, len(pools) + 1):
        for order in permutations(range(len(pools)), size):
            for parts in product(*(runs[pool] for pool in order)):
                shape = tuple(post for part in parts for post in part)
                if len(shape) <= layers:
                    yield shape


def round_counts(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12 and so on, and the most."""
    counts = [n for k in range(most.bit_length()) for n in (1 << k, 3 << k >> 1) if 0 < n < most]
    return sorted({*counts, most})


def _round_blocks(job: JobSpec, posts: Sequence[Post], pools: Sequence[Pool]) -> Iterator[Shape]:
    """Shapes of one pool, then of two, and so on: round runs of posts of one tensor degree, pools
    by the speed of their kinds."""
    fast = sorted(range(len(pools)), key=lambda number: kind_speed(job, pools[number].kind).layer_s)
    degrees = sorted({post.tensor for post in posts})
    for size in range(1, len(pools) + 1):
        for chosen, tensor in product(combinations(fast, size), degrees):
            if any(Post(pool, tensor) not in posts for pool in chosen):
                continue
            for order in dict.fromkeys((chosen, chosen[::-1])):
                most = [len(pools[pool].devices) // tensor for pool in order]
                counts = [round_counts(min(count, RUNS.get(size, 1))) for count in most]
                for runs in product(*counts):
                    if sum(runs) <= job.model.spec.layers:
                        sides = zip(order, runs, strict=True)
                        yield tuple(Post(pool, tensor) for pool, run in sides for _ in range(run))


def in_division(shape: Shape, divided: bool) -> Shape:
    """The shape with sequence parallelism in all of its tensor groups, or in none."""
    return tuple(Post(post.pool, post.tensor, divided and post.tensor > 1) for post in shape)


def divisions_of(job: JobSpec, shapes: Iterable[Shape]) -> tuple[bool, ...]:
    """Whether the tensor groups of shapes divide sequences: no, yes, or either."""
    asked = job.schedule.sequence_parallel
    degrees = {post.tensor for shape in shapes for post in shape} - {1}
    dividable = all(job.model.sequence_length % tensor == 0 for tensor in degrees)
    if not degrees or not dividable or not job.backend.divides_sequences:
        return () if asked else (False,)
    return (False, True) if asked is None else (asked,)


def used_of(shape: Shape, pools: int) -> tuple[int, ...]:
    """How many devices of each pool a shape takes."""
    used = [0] * pools
    for post in shape:
        used[post.pool] += post.tensor
    return tuple(used)


def degrees_of(shape: Shape) -> frozenset[int]:
    """The tensor degrees of a shape."""
    return frozenset(post.tensor for post in shape)
