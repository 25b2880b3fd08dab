"""The units of a plan in their places.

A unit is held by one rank of each replica, a tensor group where its degree is above 1; where its
stage has several members, by each of them. Ranks of one
degree reduce their parts in rings; where degrees differ, a rank of a smaller group has a larger
part, and takes part in the rings of all ranks that have a piece of it. All wait for the slowest:
the degree whose part takes longest over the slowest link that its ranks send on decides, and the
others are priced as if they sent as much.
"""

from __future__ import annotations

from functools import cache, cached_property
from itertools import pairwise, product

from ratrain.cost.blocks import Block
from ratrain.cost.collectives import Transfer
from ratrain.cost.compute import BlockTimes, reduced_bytes_per_param
from ratrain.describe.cluster import Link
from ratrain.describe.device import DeviceKind
from ratrain.plan.layout.links import Holders, NamedHalf
from ratrain.plan.layout.placement import PlacedReplica
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.sizes import (
    boundary_bytes,
    gathered_bytes_per_param,
    held_view_bytes,
    sent_boundary_bytes,
    trained_params,
)
from ratrain.plan.layout.times import boundary_message, times_in_layout
from ratrain.plan.price.durations import (
    DataGroup,
    OtherEnd,
    StageMessage,
    UnitPlace,
    costs_of_compute,
    costs_of_places,
)
from ratrain.program.replicas import Recovery
from ratrain.program.setup import Setup
from ratrain.simulate.costs import Costs


def unit_places(plan: Plan, setup: Setup) -> list[UnitPlace]:
    """Every unit of the setup in its place, in the order of the setup's members."""
    return _Places(plan, setup).all()


def costs_of(plan: Plan, setup: Setup) -> Costs:
    """The `Costs` of a plan's program; `setup` is the program's own, with its passes' marks."""
    return PlanCosts(plan).of(setup)


class PlanCosts:
    """The costs of a plan's programs. Units are put in their places once for all of them whose
    ranks recover alike: a short one differs from the whole in its micro-batches alone."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[object, tuple[list[UnitPlace], Link | None]] = {}

    def of(self, setup: Setup) -> Costs:
        """The `Costs` of the program with this setup."""
        return costs_of_places(self._plan.job, setup, *self._placed(setup))

    def of_compute(self, setup: Setup) -> Costs:
        """The same of compute alone."""
        return costs_of_compute(self._placed(setup)[0])

    def _placed(self, setup: Setup) -> tuple[list[UnitPlace], Link | None]:
        key = setup.first_rank, setup.tied, tuple(member.recovery for member in setup.members)
        if key not in self._known:
            places = _Places(self._plan, setup)
            self._known[key] = places.all(), places.farthest
        return self._known[key]


class _Places:
    """Where the units of a plan stand, and over which links."""

    def __init__(self, plan: Plan, setup: Setup) -> None:
        self._plan, self._setup = plan, setup
        self._links = plan.links
        self._deepest = max(replica.layout.pipeline for replica in plan.replicas)
        self._times: dict[object, BlockTimes] = {}
        self.messages_to = cache(self._messages_to)
        self.group_of = cache(self._group_of)
        self.weight_bytes = cache(self._weight_bytes)

    def all(self) -> list[UnitPlace]:
        """Every unit in its place, in the order of the setup's members."""
        return [
            place
            for number, replica in enumerate(self._plan.replicas)
            for stage, rank in replica.held
            for place in self._of_member(number, stage, rank)
        ]

    def _shared(self, holders: Holders) -> bool:
        """Whether a unit has several holders."""
        return len(self._links.groups_that_hold(holders)) > 1

    @cached_property
    def farthest(self) -> Link | None:
        """The used link of the longest latency; None for a plan of one device."""
        replicas = self._plan.replicas
        links = [
            self._links.between(number, here, there)
            for number, replica in enumerate(replicas)
            for before, after in pairwise(replica.places)
            for here, there in product(before, after)
            if _passed_on(replica, here, there)
        ]
        groups = filter(self._shared, dict.fromkeys(self._plan.holders.values()))
        links += [link for held in groups for _, link in self._links.reducing(held)]
        links += [
            link
            for number, replica in enumerate(replicas)
            for rank in range(replica.ranks)
            if (link := self._links.sums(number, rank)) is not None
        ]
        return max(links, key=lambda link: link.latency_s) if links else None

    def _of_member(self, number: int, stage: int, rank: int) -> list[UnitPlace]:
        """The units of one stage of a replica, as a rank holds them: blocks of one sort with the
        same holders stand in one place."""
        blocks, holders = self._plan.blocks[number][stage], self._plan.holders
        sorts = [(block.sort, holders[block.kind, block.index]) for block in blocks]
        alike = dict(zip(sorts, blocks, strict=True))
        device = self._slowest(number, rank, stage)
        places = {sort: self._place(number, stage, rank, alike[sort], device) for sort in alike}
        return [places[sort] for sort in sorts]

    def _place(
        self, number: int, stage: int, rank: int, block: Block, device: DeviceKind
    ) -> UnitPlace:
        """A block as a rank of a replica holds it. `device`: that its tensor group waits for."""
        replica = self._plan.replicas[number]
        layout, job = replica.layout_of(rank), self._plan.job_of(replica, rank)
        reduced = reduced_bytes_per_param(device, job.schedule.dtype, job.schedule.gradient_wire)
        holders, across = self._holders_of(number, block)
        trained = trained_params(job, block, self._deepest)
        weight_bytes = self.weight_bytes(holders)
        shared = weight_bytes * trained
        if self._setup.sharding == 3:  # views are gathered, of all parameters
            shared = held_view_bytes(job, block, self._deepest, weight_bytes)
        return UnitPlace(
            rank=self._setup.first_rank[number] + rank,
            kind=block.kind,
            device=device,
            layout=layout,
            times=self._times_of(number, rank, stage, block, device),
            params=trained / layout.tensor,
            view_bytes=shared / layout.tensor,
            reduced_bytes=reduced * (trained / layout.tensor),
            boundary_bytes=boundary_bytes(job),
            previous=self.messages_to(number, rank, stage - 1),
            following=self.messages_to(number, rank, stage + 1),
            sums_link=self._links.sums(number, rank),
            group=self.group_of(holders, shared, layout.tensor),
            across=across,
            other_end=self._other_end(number, rank),
            holders=len(self._links.groups_that_hold(holders)),
        )

    def _holders_of(self, number: int, block: Block) -> tuple[Holders, DataGroup | None]:
        """Those that add up a block's gradient with a rank of a replica, and those that average its
        weights where sites do: of a site the first replicas stand for all."""
        everyone = self._plan.holders[block.kind, block.index]
        if not self._plan.job.sites:
            return everyone, None
        sites = [replica.site for replica in self._setup.replicas]
        here = tuple(
            held if site == sites[number] else ()
            for held, site in zip(everyone, sites, strict=True)
        )
        if len(self._plan.job.sites) == 1:
            return here, None
        firsts = tuple(
            held if sites.index(site) == place else ()
            for place, (held, site) in enumerate(zip(everyone, sites, strict=True))
        )
        group, link = self._links.across(firsts, sites.index(sites[number]))
        half = NamedHalf(self._plan.job.collective, group)
        return here, DataGroup(half, link, half.chosen)

    def _slowest(self, number: int, rank: int, stage: int) -> DeviceKind:
        """The kind of device that the others of a rank's tensor group wait for."""
        kinds, block = (
            self._plan.replicas[number].kinds_of(rank),
            self._plan.blocks[number][stage][-1],
        )
        if len(kinds) == 1:
            return kinds[0]

        def seconds(kind: DeviceKind) -> float:
            times = self._times_of(number, rank, stage, block, kind)
            return times.forward_s + times.backward_s

        return max(kinds, key=seconds)

    def _times_of(
        self, number: int, rank: int, stage: int, block: Block, device: DeviceKind
    ) -> BlockTimes:
        """The times of a block on a rank, found once for all blocks of its sort."""
        member = self._setup.replicas[number].stages[stage].member_at(rank)
        assert member is not None
        selective = member.recovery is Recovery.SELECTIVE
        key = number, rank, block.sort, device.name, selective
        if key not in self._times:
            replica = self._plan.replicas[number]
            self._times[key] = times_in_layout(
                self._plan.job_of(replica, rank),
                replica.layout_of(rank),
                block,
                device,
                self._links.sums(number, rank),
                selective=selective,
            )
        return self._times[key]

    def _messages_to(self, number: int, here: int, target: int) -> tuple[StageMessage, ...]:
        """Tensors from a rank to the members of a stage beside its own; none where they are on one
        rank, or there is no such stage."""
        replica = self._plan.replicas[number]
        if not 0 <= target < replica.layout.stages:
            return ()
        members = replica.ranks_of(target)
        return tuple(
            self._message(number, here, there)
            for there in members
            if here != there and (len(members) == 1 or _passed_on(replica, here, there))
        )

    def _message(self, number: int, here: int, there: int) -> StageMessage:
        """A tensor from one rank of a replica to another."""
        replica = self._plan.replicas[number]
        size_bytes = sent_boundary_bytes(self._plan.job_of_messages(replica, here, there))
        link = self._links.between(number, here, there)
        device, inside = replica.groups[0][here][0].kind, self._links.sums(number, there)
        groups = replica.layout_of(here), replica.layout_of(there)
        sent = boundary_message(self._plan.job, size_bytes, link, device, groups, inside)
        base, serves = self._setup.first_rank[number], replica.serves[there]
        return StageMessage(base + there, link, sent, serves)

    def _other_end(self, number: int, rank: int) -> OtherEnd | None:
        """The rank with the other copy of a tied matrix."""
        tensor = self._plan.replicas[number].tensor
        last = len(tensor) - 1
        if not self._setup.tied or not last or rank not in (0, last):
            return None
        other = last - rank
        link = self._links.between(number, rank, other)
        smaller = min(tensor[0], tensor[last])
        return OtherEnd(self._setup.first_rank[number] + other, link, smaller)

    def _weight_bytes(self, holders: Holders) -> int:
        """Bytes of a parameter as these gather it."""
        first = (group[0] for group in self._links.groups_that_hold(holders))
        kinds = {device.kind.name: device.kind for device in first}
        return gathered_bytes_per_param(self._plan.job, kinds.values())

    def _group_of(self, holders: Holders, view_bytes: int, tensor: int) -> DataGroup | None:
        """The group that holds a unit of such a view, as a rank of a tensor degree sees it."""
        if not self._shared(holders):
            return None
        name = self._plan.job.collective

        def half_of(link: Link) -> NamedHalf:
            return NamedHalf(name, self._links.group(holders, link))

        def time_s(degree_and_link: tuple[int, Link]) -> float:
            degree, link = degree_and_link
            return half_of(link)(view_bytes / degree).alone_s(link.bandwidth_bytes_per_s)

        slowest, link = max(self._links.reducing(holders), key=time_s)
        half, larger = half_of(link), tensor / slowest
        if tensor == slowest:
            return DataGroup(half, link, half.chosen)

        def as_slowest(size_bytes: float, widened: float = 1.0) -> Transfer:
            return half(size_bytes * larger, widened)

        def chosen(size_bytes: float, widened: float) -> str:
            return half.chosen(size_bytes * larger, widened)

        return DataGroup(as_slowest, link, chosen)


def _passed_on(replica: PlacedReplica, here: int, there: int) -> bool:
    """Whether ranks of neighbouring stages pass any micro-batch on to each other."""
    first, second = replica.serves[here], replica.serves[there]
    if first is None or second is None:
        return first != () and second != ()
    return not set(first).isdisjoint(second)
