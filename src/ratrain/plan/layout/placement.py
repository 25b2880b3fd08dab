"""Which device holds which part of a layout, and which replicas are alike.

Ranks are counted tensor first, then data, then pipeline: a tensor group sits side by side, a
data-parallel group next, and stages furthest apart (Megatron's order, arXiv 2104.04473).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ratrain.cost.algorithms import Group
from ratrain.describe.cluster import ClusterSpec, Device, Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.errors import SpecError
from ratrain.plan.layout.links import Geometry, Seats, group_among
from ratrain.program.units import Ints


@dataclass(frozen=True)
class ReplicaClass:
    """Replicas whose stages stand on the same kinds of device: `members` are their numbers."""

    kinds: tuple[str, ...]  # the device kind of each pipeline rank
    members: tuple[int, ...]


@dataclass(frozen=True)
class Alike:
    """Many things that come to few: an example of each, and for each thing which of them it is."""

    examples: tuple[tuple[int, int], ...]
    which: Ints


class PlacedLinks:
    """The links of some degrees, whatever else a layout says, each found when it is asked for."""

    def __init__(
        self, geometry: Geometry, pipeline: int, data: int, tensor: int, *, by_site: bool
    ) -> None:
        self.by_site = by_site
        self.geometry, self.pipeline = geometry, pipeline
        self.numbers: Ints = np.arange(pipeline * data * tensor).reshape(pipeline, data, tensor)
        self.between: dict[tuple[int, int, int], Link] = {}
        self.known_hops: dict[int, Alike] = {}
        self.known_ranks: dict[int, Alike] = {}

    @cached_property
    def data(self) -> list[Link]:
        """The slowest link in the ring of each stage's data-parallel group."""
        return self.geometry.rings(self.numbers[:, None, :, 0])

    @cached_property
    def tensor(self) -> list[Link]:
        """The slowest link in the ring of each stage's tensor groups."""
        return self.geometry.rings(self.numbers)

    @cached_property
    def classes(self) -> tuple[ReplicaClass, ...]:
        names, (_, data, tensor) = self.geometry.kinds, self.numbers.shape
        members_by_kinds: dict[tuple[int, ...], list[int]] = {}
        if self.by_site:
            return self._classes_of_sites()
        if len(names) == 1:
            members_by_kinds[(0,) * self.pipeline * tensor] = list(range(data))
        else:
            kinds = self.geometry.kind_of[self.numbers].transpose(1, 0, 2).reshape(data, -1)
            for number, row in enumerate(kinds.tolist()):
                members_by_kinds.setdefault(tuple(row), []).append(number)
        return tuple(
            ReplicaClass(tuple(names[kind] for kind in row[::tensor]), tuple(members))
            for row, members in members_by_kinds.items()
        )

    def _classes_of_sites(self) -> tuple[ReplicaClass, ...]:
        """The same, where replicas of different sites are not alike."""
        first: list[list[int]] = self.numbers[:, :, 0].T.tolist()  # a replica's, of its stages
        found: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for number, of_replica in enumerate(first):
            devices = [self.geometry.devices[device] for device in of_replica]
            key = devices[0].site, tuple(device.kind.name for device in devices)
            found.setdefault(key, []).append(number)
        return tuple(ReplicaClass(kinds, tuple(m)) for (_, kinds), m in found.items())

    def hops(self, alike: ReplicaClass) -> Alike:
        """Messages between neighbours as (source, target): from each rank to the next one (the last
        one's is the first), and then back again. Alike are those of one link and kind of device,
        whose receivers have one link among themselves."""
        if alike.members[0] not in self.known_hops:
            here = list(range(self.pipeline))
            there = [*here[1:], 0]
            pairs = [*zip(here, there, strict=True), *zip(there, here, strict=True)]
            keys = [
                (
                    id(self.stage(source, target, alike.members)),
                    alike.kinds[source],
                    id(self.tensor[target]) if self.numbers.shape[2] > 1 else 0,
                )
                for source, target in pairs
            ]
            self.known_hops[alike.members[0]] = _alike(pairs, keys)
        return self.known_hops[alike.members[0]]

    def ranks(self, alike: ReplicaClass) -> Alike:
        """Pipeline ranks as (rank, rank). Alike are those of one kind of device and one link of
        each sort of group."""
        if alike.members[0] not in self.known_ranks:
            data = self.data if self.numbers.shape[1] > 1 else [None] * self.pipeline
            tensor = self.tensor if self.numbers.shape[2] > 1 else [None] * self.pipeline
            pairs = [(rank, rank) for rank in range(self.pipeline)]
            keys = [(alike.kinds[r], id(data[r]), id(tensor[r])) for r, _ in pairs]
            self.known_ranks[alike.members[0]] = _alike(pairs, keys)
        return self.known_ranks[alike.members[0]]

    @cached_property
    def seats(self) -> tuple[Seats, ...]:
        devices = self.geometry.devices
        numbers: list[list[list[int]]] = self.numbers.transpose(1, 0, 2).tolist()
        return tuple(
            Seats(
                tuple(
                    tuple(tuple(devices[n] for n in group) for group in numbers[data])
                    for data in alike.members
                ),
                alike.members,
            )
            for alike in self.classes
        )

    def stage(self, source: int, target: int, members: Sequence[int]) -> Link:
        """The slowest link between two pipeline ranks over a class of replicas."""
        key = source, target, members[0]  # classes share no members
        if key not in self.between:
            self._find(members)
        if key not in self.between:  # not neighbours
            (self.between[key],) = self._pairs([source], [target], members)
        return self.between[key]

    def _find(self, members: Sequence[int]) -> None:
        """All links between neighbours, both ways: they are asked for together."""
        if self.pipeline == 1:
            return
        here = list(range(self.pipeline))
        there = [*here[1:], 0]
        sources, targets = [*here, *there], [*there, *here]
        links = self._pairs(sources, targets, members)
        for source, target, link in zip(sources, targets, links, strict=True):
            self.between[source, target, members[0]] = link

    def _pairs(
        self, sources: Sequence[int], targets: Sequence[int], members: Sequence[int]
    ) -> list[Link]:
        first = self.numbers[:, list(members), 0]
        return self.geometry.pairs(first[list(sources)], first[list(targets)])


@dataclass
class _Known:
    """What placements of the same devices have found out."""

    geometry: Geometry | None = None
    links: dict[tuple[int, int, int], PlacedLinks] = field(
        default_factory=dict[tuple[int, int, int], PlacedLinks]
    )
    data_groups: dict[tuple[int, int, int, int], Group] = field(
        default_factory=dict[tuple[int, int, int, int], Group]
    )  # by pipeline, data and tensor degree, and pipeline rank


@dataclass(frozen=True)
class Placement:
    """A layout on a cluster's devices. Those made of one another by `replace` of the layout share
    what they find out about links."""

    cluster: ClusterSpec
    layout: LayoutSpec
    devices: tuple[Device, ...]
    by_site: bool = False  # replicas of different sites behave differently
    known: _Known = field(default_factory=_Known, compare=False, repr=False)

    def device(self, pipeline: int, data: int, tensor: int = 0) -> Device:
        layout = self.layout
        return self.devices[(pipeline * layout.data + data) * layout.tensor + tensor]

    @property
    def classes(self) -> tuple[ReplicaClass, ...]:
        """Replicas in classes of alike ones; all members of a class behave alike."""
        return self.links.classes

    @property
    def seats(self) -> tuple[Seats, ...]:
        """The devices of each class of replicas."""
        return self.links.seats

    def kind(self, name: str) -> DeviceKind:
        return self.cluster.kind(name)

    def data_group(self, pipeline: int) -> Group:
        """The replicas' devices for a stage."""
        layout, known = self.layout, self.known.data_groups
        key = layout.pipeline, layout.data, layout.tensor, pipeline
        if key not in known:
            members = [self.device(pipeline, data) for data in range(layout.data)]
            known[key] = group_among(self.cluster, members, self.links.data[pipeline], self.devices)
        return known[key]

    def inside(self, pipeline: int) -> Link | None:
        """The slowest link in the ring of a stage's tensor groups; None where a rank is alone."""
        return self.links.tensor[pipeline] if self.layout.tensor > 1 else None

    def sums_share_data_link(self, pipeline: int) -> bool:
        """Whether a stage's tensor groups and its data-parallel group use the same link."""
        links = self.links
        return links.geometry.one_link(links.tensor[pipeline], links.data[pipeline])

    @cached_property
    def links(self) -> PlacedLinks:
        """The links between its ranks."""
        known, layout = self.known, self.layout
        if known.geometry is None:
            known.geometry = Geometry(self.cluster, self.devices)
        degrees = layout.pipeline, layout.data, layout.tensor
        if degrees not in known.links:
            known.links[degrees] = PlacedLinks(known.geometry, *degrees, by_site=self.by_site)
        return known.links[degrees]


def _alike(pairs: list[tuple[int, int]], keys: Sequence[object]) -> Alike:
    place: dict[object, int] = {}
    which = [place.setdefault(key, len(place)) for key in keys]
    examples = tuple(pairs[which.index(number)] for number in range(len(place)))
    return Alike(examples, np.array(which, dtype=np.int64))


def place(job: JobSpec, layout: LayoutSpec) -> Placement:
    """The placement of a job's layout on the first devices of its cluster."""
    return placed_on(job, layout, job.cluster.members())


def placed_on(job: JobSpec, layout: LayoutSpec, devices: tuple[Device, ...]) -> Placement:
    """The same on these devices. Where sites average weights no replica crosses from one to
    another."""
    if job.sites:
        return Placement(job.cluster.spec, layout, _site_by_site(job, layout, devices), True)
    return Placement(job.cluster.spec, layout, devices)


def devices_of_sites(job: JobSpec, devices: Sequence[Device]) -> list[list[Device]]:
    """Of these devices those at each of the sites between which a job averages weights."""
    return [[device for device in devices if device.site == site] for site in job.sites]


def _site_by_site(
    job: JobSpec, layout: LayoutSpec, devices: tuple[Device, ...]
) -> tuple[Device, ...]:
    """Devices in an order in which the first replicas stand at the first site, and so on."""
    held = devices_of_sites(job, devices)
    counts = [len(of_site) for of_site in held]
    if len(set(counts)) > 1 or layout.data % len(held):
        names = ", ".join(f"{n} at {s}" for n, s in zip(counts, job.sites, strict=True))
        raise SpecError(
            f"{layout.data} alike replicas on {names} do not stand at sites as many at each",
            place=f"{job.path or 'job'} [schedule] average_between",
            fix="leave [layout] out: `ratrain plan` divides each site as suits it; or use as many "
            f"devices of each site and data a multiple of {len(held)}",
        )
    of_rank = layout.data // len(held) * layout.tensor
    return tuple(
        device
        for pipeline in range(layout.pipeline)
        for of_site in held
        for device in of_site[pipeline * of_rank : (pipeline + 1) * of_rank]
    )
