"""Which device holds which part of a layout, and which replicas are alike.

Ranks are counted tensor first, then data, then pipeline: a tensor group sits side by side, a
data-parallel group next, and stages furthest apart (Megatron's order, arXiv 2104.04473).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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
        ring = [self.device(pipeline, data) for data in range(self.layout.data)]
        return self.cluster.slowest_link(ring)

    def tensor_link(self, pipeline: int) -> Link:
        """The slowest link in the ring of a stage's tensor groups."""
        groups = (
            [self.device(pipeline, data, t) for t in range(self.layout.tensor)]
            for data in range(self.layout.data)
        )
        return min((self.cluster.slowest_link(group) for group in groups), key=_rate)

    def stage_link(self, source: int, target: int, members: Sequence[int]) -> Link:
        """The slowest link between two pipeline ranks over a class of replicas."""
        links = (
            self.cluster.link(self.device(source, data), self.device(target, data))
            for data in members
        )
        return min(links, key=_rate)


def place(job: JobSpec, layout: LayoutSpec) -> Placement:
    """The placement of a job's layout on the first devices of its cluster."""
    return Placement(job.cluster.spec, layout, job.cluster.members())


def _rate(link: Link) -> tuple[float, float]:
    return link.bandwidth_bytes_per_s, -link.latency_s
