"""Which device holds which part of a layout, and which replicas are alike.

Ranks are counted tensor first, then data, then pipeline: a tensor group sits side by side, a
data-parallel group next, and stages furthest apart (Megatron's order, arXiv 2104.04473).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from ratrain.describe.cluster import ClusterSpec, Device, DeviceKind, Link
from ratrain.describe.job import JobSpec, LayoutSpec


@dataclass(frozen=True)
class ReplicaClass:
    """Replicas whose stages stand on the same kinds of device: `members` are their numbers."""

    kinds: tuple[str, ...]  # the device kind of each pipeline rank
    members: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """A layout on a cluster's devices."""

    cluster: ClusterSpec
    layout: LayoutSpec
    devices: tuple[Device, ...]

    def device(self, pipeline: int, data: int, tensor: int = 0) -> Device:
        layout = self.layout
        return self.devices[(pipeline * layout.data + data) * layout.tensor + tensor]

    @cached_property
    def classes(self) -> tuple[ReplicaClass, ...]:
        """Replicas in classes of alike ones; all members of a class behave alike."""
        found: dict[tuple[str, ...], list[int]] = {}
        for data in range(self.layout.data):
            kinds = tuple(self.device(p, data).kind.name for p in range(self.layout.pipeline))
            found.setdefault(kinds, []).append(data)
        return tuple(ReplicaClass(kinds, tuple(members)) for kinds, members in found.items())

    def kind(self, name: str) -> DeviceKind:
        return self.cluster.kind(name)

    def data_link(self, pipeline: int) -> Link:
        """The slowest link in the ring of a stage's data-parallel group."""
        return self._data_links[pipeline]

    @cached_property
    def _data_links(self) -> tuple[Link, ...]:
        return tuple(
            self._ring_link([self.device(stage, data) for data in range(self.layout.data)])
            for stage in range(self.layout.pipeline)
        )

    def tensor_link(self, pipeline: int) -> Link:
        """The slowest link in the ring of a stage's tensor groups."""
        return self._tensor_links[pipeline]

    @cached_property
    def _tensor_links(self) -> tuple[Link, ...]:
        return tuple(
            min((self._ring_link(group) for group in self._tensor_groups(stage)), key=_rate)
            for stage in range(self.layout.pipeline)
        )

    def _tensor_groups(self, pipeline: int) -> list[list[Device]]:
        return [
            [self.device(pipeline, data, t) for t in range(self.layout.tensor)]
            for data in range(self.layout.data)
        ]

    def stage_link(self, source: int, target: int, members: Sequence[int]) -> Link:
        """The slowest link between two pipeline ranks over a class of replicas."""
        key = source, target, members[0]  # classes share no members
        if key not in self._known_stage_links:
            pairs = ((self.device(source, data), self.device(target, data)) for data in members)
            groups = self._devices_on_host
            shares = ((self.cluster.link(a, b), groups[a.host]) for a, b in pairs)
            self._known_stage_links[key] = self._slowest_share(shares)
        return self._known_stage_links[key]

    @cached_property
    def _known_stage_links(self) -> dict[tuple[int, int, int], Link]:
        return {}

    @cached_property
    def farthest_link(self) -> Link:
        """The used link of the longest latency. A layout of one device uses none."""
        layout = self.layout
        links = [
            self.stage_link(stage - 1, stage, alike.members)
            for stage in range(1, layout.pipeline)
            for alike in self.classes
        ]
        if layout.data > 1:
            links += self._data_links
        if layout.tensor > 1:
            links += self._tensor_links
        return max(links, key=lambda link: link.latency_s)

    def _ring_link(self, ring: Sequence[Device]) -> Link:
        """The slowest link of a ring, as one of the groups that cross it sees it: a ring crosses a
        host once, however many of its members stand there."""
        members = Counter(device.host for device in ring)
        pairs = pairwise([*ring, ring[0]])
        groups = {host: self._devices_on_host[host] / count for host, count in members.items()}
        return self._slowest_share((self.cluster.link(a, b), groups[a.host]) for a, b in pairs)

    def _slowest_share(self, shares: Iterable[tuple[Link, float]]) -> Link:
        """The slowest of links, each divided among as many groups as cross it where its host
        shares it. Equal answers are one object: many places ask, few links are different."""
        different = {(id(link), groups): (link, groups) for link, groups in shares}
        found: list[Link] = []
        for key, (link, groups) in different.items():
            if link.shared_by == "device":
                found.append(link)
                continue
            if key not in self._known_shares:
                part = link.bandwidth_bytes_per_s / groups
                self._known_shares[key] = replace(link, bandwidth_bytes_per_s=part)
            found.append(self._known_shares[key])
        return min(found, key=_rate)

    @cached_property
    def _known_shares(self) -> dict[tuple[int, float], Link]:
        return {}

    @cached_property
    def _devices_on_host(self) -> Counter[int]:
        return Counter(device.host for device in self.devices)


def place(job: JobSpec, layout: LayoutSpec) -> Placement:
    """The placement of a job's layout on the first devices of its cluster."""
    return Placement(job.cluster.spec, layout, job.cluster.members())


def _rate(link: Link) -> tuple[float, float]:
    return link.bandwidth_bytes_per_s, -link.latency_s
