"""Where replicas stand, and the links between their ranks: found once for all plans of the same
devices, whatever else these say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import lcm

import numpy as np

from ratrain.cost.algorithms import Group
from ratrain.describe.cluster import ClusterSpec, Device, Link
from ratrain.plan.layout.geometry import Geometry
from ratrain.plan.layout.gradient_groups import group_among
from ratrain.program.units import Ints

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


def kinds_of_groups(groups: Groups) -> tuple[tuple[str, ...], ...]:
    """The kinds of device of each tensor group: replicas that share them behave alike."""
    return tuple(tuple(device.kind.name for device in group) for group in groups)


@lru_cache(maxsize=64)
def links_of(cluster: ClusterSpec, seats: tuple[Seats, ...]) -> Links:
    """The `Links` between replicas on these devices."""
    return Links(cluster, seats)


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

    def _across(self, holders: Holders) -> tuple[Group, Link]:
        """The owners of one part of a unit, one at each site, and the slowest link between them.
        `holders`: of one sort of replicas at each site."""
        groups = [
            of_sort.groups[0][ranks[0]]
            for of_sort, ranks in zip(self._seats, holders, strict=True)
            if ranks
        ]
        ring = np.array([[self._place[group[0].index] for group in groups]])
        link = self._geometry.sender(ring, np.ones(ring.shape, dtype=np.bool_))
        return group_among(self._cluster, [group[0] for group in groups], link, self._devices), link

    def _group(self, holders: Holders, link: Link) -> Group:
        """The first devices of the groups that hold a unit, as a group whose slowest link is that
        one."""
        members: Sequence[Device] = [group[0] for group in self.groups_that_hold(holders)]
        return group_among(self._cluster, members, link, self._devices)
