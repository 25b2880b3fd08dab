"""The links between ranks: the slowest of many groups of devices at once, those between the ranks
of a plan's replicas, and the ranks that reduce a stage's gradients together.

A search asks the same of a thousand devices for every layout. What a link is depends on little:
which sorts of host its ends stand on, and whether they share host and chip. So pairs are columns
of numbers, and only those that differ are looked at one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import lcm
from typing import Protocol

import numpy as np

from ratrain.cost.algorithms import ALGORITHMS, AUTO, Group, Hosts, fastest, half
from ratrain.cost.collectives import Transfer, reduction_loss
from ratrain.cost.exchanges import order_words
from ratrain.cost.precision import wire_bytes
from ratrain.describe.cluster import ClusterSpec, Device, Link
from ratrain.describe.job import JobSpec
from ratrain.describe.strict import nearest
from ratrain.errors import SpecError
from ratrain.program.units import Bools, Ints


class Geometry:
    """The devices of a job in their order. Equal links that it answers with are one object."""

    def __init__(self, cluster: ClusterSpec, devices: Sequence[Device]) -> None:
        self._cluster, self.devices = cluster, devices
        self._shares: dict[tuple[int, float], Link] = {}
        self._whole: dict[int, int] = {}  # id of a share -> id of the link
        hosts = [device.host for device in devices]
        counts = Counter(hosts)
        self._host = np.array(hosts, dtype=np.int64)
        self._on_host = np.array([counts[host] for host in hosts], dtype=np.int64)
        self._chip = np.array([device.chip for device in devices], dtype=np.int64)
        sorts: dict[object, int] = {}
        places = [(id(d.host_kind), d.room, d.site) for d in devices]
        self._sort = np.array([sorts.setdefault(place, len(sorts)) for place in places])
        kinds = [device.kind.name for device in devices]
        self.kinds = tuple(dict.fromkeys(kinds))
        number = {name: place for place, name in enumerate(self.kinds)}
        self.kind_of = np.array([number[name] for name in kinds], dtype=np.int64)

    def rings(self, members: Ints) -> list[Link]:
        """The slowest link of each row of rings (rows x rings x device numbers), as one of the
        groups that cross it sees it: a ring crosses a host once, however many of its members stand
        there."""
        return self._slowest(self._around(members))

    def sender(self, rings: Ints, chosen: Bools) -> Link:
        """The slowest link over which the chosen members of rings (rings x device numbers) send."""
        pairs = self._around(rings[None])
        picked = np.broadcast_to(chosen, rings.shape).reshape(-1)
        sources, targets, within = (
            numbers[:, picked] for numbers in (pairs.sources, pairs.targets, pairs.within)
        )
        return self._slowest(_Pairs(sources, targets, within))[0]

    def _around(self, members: Ints) -> _Pairs:
        """Each member of rings, and the one behind it."""
        rows, rings, _ = members.shape
        host = self._host[members]
        ring: Ints = np.arange(rows * rings, dtype=np.int64).reshape(rows, rings, 1)
        named = ring * (int(host.max()) + 1) + host
        _, inverse, counts = np.unique(named, return_inverse=True, return_counts=True)
        following = np.roll(members, -1, axis=2)
        within = counts[inverse]
        return _Pairs(*(numbers.reshape(rows, -1) for numbers in (members, following, within)))

    def pairs(self, sources: Ints, targets: Ints) -> list[Link]:
        """The slowest link between each row's sources and its targets, one by one."""
        return self._slowest(_Pairs(sources, targets, np.ones_like(sources)))

    def _slowest(self, pairs: _Pairs) -> list[Link]:
        a, b = pairs.sources, pairs.targets
        same_host = self._host[a] == self._host[b]
        same_chip = same_host & (self._chip[a] == self._chip[b])
        parts = same_host, same_chip, self._sort[a], self._sort[b], self._on_host[a], pairs.within
        code = np.zeros(a.shape, dtype=np.int64)
        for part in parts:
            code = code * (int(part.max()) + 1) + part
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        links = [self._share(pairs, place) for place in first.tolist()]
        order = sorted(range(len(links)), key=lambda n: (speed(links[n]), first[n]))
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        slowest = rank[inverse.reshape(a.shape)].min(axis=1)
        return [links[order[place]] for place in slowest.tolist()]

    def _share(self, pairs: _Pairs, place: int) -> Link:
        """The link of one pair, divided among all groups that cross it where its host shares it."""
        a, b = int(pairs.sources.flat[place]), int(pairs.targets.flat[place])
        link = self._cluster.link(self.devices[a], self.devices[b])
        if link.shared_by == "device":
            return link
        groups = int(self._on_host[a]) / int(pairs.within.flat[place])
        key = id(link), groups
        if key not in self._shares:
            self._shares[key] = link.divided(groups)
            self._whole[id(self._shares[key])] = id(link)
        return self._shares[key]

    def one_link(self, a: Link, b: Link) -> bool:
        """Whether two links that it answered with are the same one, or shares of the same one."""
        return self._whole.get(id(a), id(a)) == self._whole.get(id(b), id(b))


@dataclass(frozen=True)
class _Pairs:
    """Rows of device numbers; `within`: how many of a row's members stand on the source's host."""

    sources: Ints
    targets: Ints
    within: Ints


def speed(link: Link) -> tuple[float, float]:
    """What orders links from the slowest: bandwidth, then latency."""
    return link.bandwidth_bytes_per_s, -link.latency_s


class Half(Protocol):
    """A reduce-scatter or all-gather, for the bytes that one rank has of it."""

    def __call__(self, size_bytes: float, widened: float = 1.0, /) -> Transfer:
        """`widened`: how many times as long a sum's element is on its way as a rank's own."""
        ...


@dataclass(frozen=True)
class NamedHalf:
    """The half of a collective over a group, by the algorithm of a name or the fastest one."""

    name: str
    group: Group

    def __call__(self, size_bytes: float, widened: float = 1.0, /) -> Transfer:
        return half(self.name, size_bytes, self.group, widened)

    def chosen(self, size_bytes: float, widened: float) -> str:
        """The algorithm's name for a size."""
        return fastest(size_bytes, self.group, widened) if self.name == AUTO else self.name


def half_among(
    name: str, cluster: ClusterSpec, members: Sequence[Device], link: Link, used: Sequence[Device]
) -> NamedHalf:
    """The half of a collective over devices, by the algorithm of a name; `used`: all of the job."""
    return NamedHalf(name, group_among(cluster, members, link, used))


def group_among(
    cluster: ClusterSpec, members: Sequence[Device], slowest: Link, used: Sequence[Device]
) -> Group:
    """Devices as a group. Of the links between neighbours in their ring, the slowest inside a host
    and the slowest between two."""
    hosts = tuple(device.host for device in members)
    inside, between = list[Link](), list[Link]()
    for device, following in pairwise([*members, members[0]]):
        known = inside if device.host == following.host else between
        known.append(cluster.link(device, following))
    across = min(between or inside or [slowest], key=speed)
    on_host = Counter(device.host for device in used)
    return Group(
        hosts,
        slowest,
        across,
        min(inside or [across], key=speed),
        max(on_host[host] / count for host, count in Counter(hosts).items()),
        max(reduction_loss(kind) for kind in {id(d.kind): d.kind for d in members}.values()),
    )


def require_collective(name: str | None, file: str = "") -> None:
    """Refuses a name that no algorithm has; None is the backend's own."""
    names = (AUTO, *ALGORITHMS)
    if name is not None and name not in names:
        raise SpecError(
            f"unknown collective {name!r}",
            place=f"{file} [schedule] collective".strip(),
            fix=nearest(name, names),
        )


def collective_words(job: JobSpec, groups: Iterable[Hosts]) -> list[str]:
    """How replicas reduce, and in which order they are added on these groups of hosts, as a line
    of a headline; none where the job leaves it to its backend. Groups that are left out are not
    spoken of."""
    name = job.collective
    if name == job.backend.collective:
        return []
    if name == AUTO:
        return ["collective of replicas: the fastest for each unit"]
    order = order_words((name, hosts) for hosts in groups if len(hosts) > 1)
    return [f"collective of replicas: {name}" + (f", added in the order {order}" if order else "")]


def widened(job: JobSpec) -> float:
    """How many times as long an element of a sum of gradients is on its way as one of a rank's
    own."""
    if not job.backend.widens_sums:
        return 1.0
    return 4 / wire_bytes(job.schedule.gradients_travel_in)


Groups = tuple[tuple[Device, ...], ...]
"""The tensor group of each rank of one replica."""

Holders = tuple[tuple[int, ...], ...]
"""For each sort of replicas, the ranks of a replica that hold a unit."""


@dataclass(frozen=True, eq=False)
class Seats:
    """The devices of replicas that behave alike. `members`: their numbers among all replicas."""

    groups: tuple[Groups, ...]
    members: tuple[int, ...]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Seats):
            return NotImplemented
        return self.members == other.members and self.groups == other.groups

    def __hash__(self) -> int:  # of few devices: there may be thousands
        return hash((self.members[:1], len(self.members)))

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        return tuple(device for ranks in self.groups for group in ranks for device in group)


NO_SEATS = Seats((), ())


class Links:
    """The slowest links between ranks of replicas, each found when it is first asked for. A sort of
    replicas has a number: its place in `seats`."""

    def __init__(self, cluster: ClusterSpec, seats: tuple[Seats, ...]) -> None:
        self._cluster, self._seats = cluster, seats
        used = (device for of_sort in seats for device in of_sort.devices)
        self._devices = tuple(sorted(used, key=lambda device: device.index))
        self._geometry = Geometry(cluster, self._devices)
        number = {device.index: place for place, device in enumerate(self._devices)}
        self._numbers: list[list[Ints]] = [
            [
                np.array([[number[d.index] for d in group] for group in of_rank])
                for of_rank in zip(*of_sort.groups, strict=True)
            ]
            for of_sort in seats
        ]
        self._place = number
        self.sums = lru_cache(maxsize=None)(self._sums)
        self.between = lru_cache(maxsize=None)(self._between)
        self.groups_that_hold = lru_cache(maxsize=None)(self._groups_that_hold)
        self.reducing = lru_cache(maxsize=None)(self._reducing)
        self.group = lru_cache(maxsize=None)(self._group)
        self.across = lru_cache(maxsize=None)(self._across)

    def _sums(self, number: int, rank: int) -> Link | None:
        """The slowest link in the rings of a rank's tensor groups; None where it is alone."""
        groups = self._numbers[number][rank]
        return self._geometry.rings(groups[None])[0] if groups.shape[1] > 1 else None

    def _between(self, number: int, source: int, target: int) -> Link:
        """The slowest link between two ranks of a replica. Between groups of one degree first
        devices stand for all, else every pair that has bytes for each other is looked at."""
        here, there = self._numbers[number][source], self._numbers[number][target]
        if here.shape[1] == there.shape[1]:
            here, there = here[:, :1], there[:, :1]
        parts = lcm(here.shape[1], there.shape[1])
        slots = np.arange(parts)
        sources = here[:, slots * here.shape[1] // parts].reshape(1, -1)
        targets = there[:, slots * there.shape[1] // parts].reshape(1, -1)
        return self._geometry.pairs(sources, targets)[0]

    def _groups_that_hold(self, holders: Holders) -> list[tuple[Device, ...]]:
        """The tensor groups that hold a unit, in the order of the replicas' numbers, and of
        members."""
        groups: dict[int, list[tuple[Device, ...]]] = {}
        for of_sort, held in zip(self._seats, holders, strict=True):
            for number, ranks in zip(of_sort.members, of_sort.groups, strict=True):
                groups[number] = [ranks[rank] for rank in held]
        return [group for number in sorted(groups) for group in groups[number]]

    def _reducing(self, holders: Holders) -> list[tuple[int, Link]]:
        """For each tensor degree among the holders, the slowest link that its ranks send on."""
        groups = self.groups_that_hold(holders)
        degrees = np.array([len(group) for group in groups])
        found = sorted(set(degrees.tolist()))
        parts = 1 if len(found) == 1 else lcm(*found)
        rings = np.array(
            [
                [self._place[group[part * len(group) // parts].index] for group in groups]
                for part in range(parts)
            ]
        )
        return [(degree, self._geometry.sender(rings, degrees == degree)) for degree in found]

    def _across(self, holders: Holders, number: int) -> tuple[Group, Link]:
        """The owners of one part of a unit, one at each site, and the slowest link on which those
        of one of them send: of all parts, where sites have unlike tensor degrees. `holders`: of one
        sort of replicas at each site; `number`: the sort at that one."""
        groups = [
            of_sort.groups[0][ranks[0]]
            for of_sort, ranks in zip(self._seats, holders, strict=True)
            if ranks
        ]
        degrees = [len(group) for group in groups]
        parts = 1 if len(set(degrees)) == 1 else lcm(*degrees)
        rings = np.array(
            [
                [self._place[group[part * len(group) // parts].index] for group in groups]
                for part in range(parts)
            ]
        )
        sends = [place == number for place, ranks in enumerate(holders) if ranks]
        link = self._geometry.sender(rings, np.array(sends))
        return group_among(self._cluster, [group[0] for group in groups], link, self._devices), link

    def _group(self, holders: Holders, link: Link) -> Group:
        """The first devices of the groups that hold a unit, as a group whose slowest link is that
        one."""
        members: Sequence[Device] = [group[0] for group in self.groups_that_hold(holders)]
        return group_among(self._cluster, members, link, self._devices)


links_of = lru_cache(maxsize=64)(Links)
"""The `Links` between replicas on these devices."""
