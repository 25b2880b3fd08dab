"""Which device holds which part of a layout, which replicas are alike, and replicas of any plan.

Ranks are counted tensor first, then data, then pipeline: a tensor group sits side by side, a
data-parallel group next, and stages furthest apart (Megatron's order, arXiv 2104.04473).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from ratrain.cost.algorithms import Group
from ratrain.describe.cluster import ClusterSpec, Device, Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.layout.jobs import fault
from ratrain.plan.layout.links import NO_SEATS, Geometry, Groups, Seats, group_among
from ratrain.program.replicas import Recovery
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
        if len(names) == 1 and not self.by_site:  # there may be thousands
            return (ReplicaClass(names * self.pipeline, tuple(range(data))),)
        kinds = self.geometry.kind_of[self.numbers].transpose(1, 0, 2).reshape(data, -1)
        found: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for number, row in enumerate(kinds.tolist()):
            first = self.geometry.devices[int(self.numbers[0, number, 0])]
            key = first.site if self.by_site else "", tuple(row)
            found.setdefault(key, []).append(number)
        return tuple(
            ReplicaClass(tuple(names[kind] for kind in row[::tensor]), tuple(members))
            for (_, row), members in found.items()
        )

    def hops(self, alike: ReplicaClass) -> Alike:
        """Messages between neighbours. Alike are those of one link and kind of device, whose
        receivers have one link among themselves."""
        if alike.members[0] not in self.known_hops:
            pairs = self._neighbours()
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
            pairs = [(source, target)]
            if (0, 1 % self.pipeline, members[0]) not in self.between:  # neighbours, all together
                pairs += self._neighbours()
            first = self.numbers[:, list(members), 0]
            here, there = map(list, zip(*pairs, strict=True))
            for pair, link in zip(
                pairs, self.geometry.pairs(first[here], first[there]), strict=True
            ):
                self.between[*pair, members[0]] = link
        return self.between[key]

    def _neighbours(self) -> list[tuple[int, int]]:
        """(source, target) of messages: from each rank to the next one (the last one's is the
        first), and then back again."""
        there = [(rank, (rank + 1) % self.pipeline) for rank in range(self.pipeline)]
        return [*there, *((target, source) for source, target in there)]


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
        what = f"{layout.data} alike replicas on {names} do not stand at sites as many at each"
        fix = "leave [layout] out: `ratrain plan` divides each site as suits it; or use as many "
        fix += f"devices of each site and data a multiple of {len(held)}"
        raise fault(job, "[schedule] average_between", what, fix)
    of_rank = layout.data // len(held) * layout.tensor
    return tuple(
        device
        for pipeline in range(layout.pipeline)
        for of_site in held
        for device in of_site[pipeline * of_rank : (pipeline + 1) * of_rank]
    )


# ---- replicas of any plan --------------------------------------------------------------------


Served = tuple[int, ...] | None
"""The micro-batches of a member; None: it serves all, as the only one of its stage."""


@dataclass(frozen=True)
class PlacedReplica:
    """Replicas that behave alike. `seats`: their devices. `layout`: their degrees,
    with the tensor degree of the first rank. Ranks count the members of one place in the pipeline
    after those of the place before; a rank whose stage has one member is a place of its own."""

    layout: LayoutSpec
    tensor: tuple[int, ...]  # of each rank
    recovery: tuple[Recovery, ...]  # of each member of each stage
    micro_batch: int  # sequences of one, on the stage of the smallest
    micro_batches: int  # of that size
    seats: Seats
    entry: int = 0  # the plan file's, where it stands
    serving: tuple[tuple[Served, ...], ...] = ()
    """For each place in the pipeline, what its members serve; (): each has one, which serves all"""
    joined: tuple[int, ...] = ()
    """Of each rank, how many micro-batches it computes at once; (): each computes one by one"""

    @property
    def groups(self) -> tuple[Groups, ...]:
        """For each of them the tensor group of each rank."""
        return self.seats.groups

    @property
    def members(self) -> tuple[int, ...]:
        """Their numbers among all replicas of the plan."""
        return self.seats.members

    @property
    def layers(self) -> tuple[int, ...]:
        """Of each stage."""
        assert not isinstance(self.layout.layers, str)  # a plan gives numbers
        return self.layout.layers

    @property
    def kinds(self) -> tuple[str, ...]:
        """The device kind of each rank."""
        return tuple(group[0].kind.name for group in self.groups[0])

    def kinds_of(self, rank: int) -> tuple[DeviceKind, ...]:
        """The kinds of a rank's tensor group, each once."""
        return tuple({device.kind.name: device.kind for device in self.groups[0][rank]}.values())

    @property
    def ranks(self) -> int:
        return len(self.tensor)

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """For each place in the pipeline the ranks of its members."""
        counts = [len(shares) for shares in self.serving] or [1] * self.layout.pipeline
        ends = list(accumulate(counts))
        return tuple(tuple(range(e - n, e)) for n, e in zip(counts, ends, strict=True))

    @cached_property
    def serves(self) -> tuple[Served, ...]:
        """What each rank serves."""
        shares = tuple(share for shares in self.serving for share in shares)
        return shares or (None,) * self.ranks

    def computing(self, sizes: Sequence[int]) -> PlacedReplica:
        """The same share of a step, with so many sequences at once on each rank."""
        smallest = min(sizes)
        joined = tuple(size // smallest for size in sizes)
        return replace(
            self,
            micro_batch=smallest,
            micro_batches=self.sequences // smallest,
            joined=joined if max(joined) > 1 else (),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of each rank, the sequences that it computes at once."""
        return tuple(self.micro_batch * self.joined_of(rank) for rank in range(self.ranks))

    def joined_of(self, rank: int) -> int:
        """How many micro-batches a rank computes at once."""
        return self.joined[rank] if self.joined else 1

    @property
    def has_members(self) -> bool:
        """Whether a stage has several."""
        return self.ranks > self.layout.pipeline

    def ranks_of(self, stage: int) -> tuple[int, ...]:
        """The ranks that hold a stage."""
        return self.places[stage % self.layout.pipeline]

    @property
    def held(self) -> tuple[tuple[int, int], ...]:
        """(stage, rank) of each member of each stage, in the order of the setup's members."""
        stages = range(self.layout.stages)
        return tuple((stage, rank) for stage in stages for rank in self.ranks_of(stage))

    @property
    def sequences(self) -> int:
        """What one of them takes in a step."""
        return self.micro_batches * self.micro_batch

    def layout_of(self, rank: int) -> LayoutSpec:
        """The layout as a rank sees it: with its own tensor degree. A rank that is alone divides
        no sequence."""
        tensor = self.tensor[rank]
        divided = self.layout.sequence_parallel and tensor > 1
        return replace(self.layout, tensor=tensor, sequence_parallel=divided)

    def in_mode(self, mode: Recovery, ranks: Collection[int]) -> PlacedReplica:
        """The same with another recovery mode on the stages of some ranks."""
        recovery = tuple(
            mode if rank in ranks else known
            for (_, rank), known in zip(self.held, self.recovery, strict=True)
        )
        return replace(self, recovery=recovery)


def folded(
    replicas: Iterable[PlacedReplica], *, by_site: bool = False
) -> tuple[PlacedReplica, ...]:
    """Single replicas, those that behave alike as one, in the order of the first of each."""
    alike: dict[object, list[PlacedReplica]] = {}
    for single in replicas:
        groups = single.groups[0]
        kinds = tuple(tuple(device.kind.name for device in group) for group in groups)
        site = groups[0][0].site if by_site else ""
        key = replace(single, seats=NO_SEATS, entry=0), kinds, site
        alike.setdefault(key, []).append(single)
    return tuple(
        replace(
            same[0],
            seats=Seats(
                tuple(single.groups[0] for single in same),
                tuple(single.members[0] for single in same),
            ),
        )
        for same in alike.values()
    )
