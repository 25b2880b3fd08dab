"""The slowest links of many groups of devices at once.

A search asks the same of a thousand devices for every layout. What a link is depends on little:
which sorts of host its ends stand on, and whether they share host and chip. So pairs are columns
of numbers, and only those that differ are looked at one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratrain.describe.cluster import ClusterSpec, Device, Link
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
