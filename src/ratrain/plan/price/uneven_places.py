"""The units of a plan whose stages and replicas differ, in their places.

A unit is held by one rank of each replica, a tensor group where its degree is above 1; where its
stage has several members, by each of them. Ranks of one
degree reduce their parts in rings; where degrees differ, a rank of a smaller group has a larger
part, and takes part in the rings of all ranks that have a piece of it. All wait for the slowest:
the degree whose part takes longest over the slowest link that its ranks send on decides, and the
others are priced as if they sent as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise, product
from math import lcm

import numpy as np

from ratrain.cost.collectives import Transfer
from ratrain.cost.compute import reduced_bytes_per_param
from ratrain.describe.cluster import Device, Link
from ratrain.plan.file.uneven import UnevenPlan, UnevenReplica
from ratrain.plan.layout.compute_times import times_in_layout
from ratrain.plan.layout.geometry import Geometry, speed
from ratrain.plan.layout.gradient_groups import NamedHalf, half_among
from ratrain.plan.layout.sizes import (
    blocks_of_stages,
    boundary_bytes,
    gathered_bytes_per_param,
    held_params,
    sent_boundary_bytes,
    trained_params,
)
from ratrain.plan.layout.transfers import group_message, regrouped_message
from ratrain.plan.layout.unit_place import DataGroup, OtherEnd, StageMessage, UnitPlace
from ratrain.plan.price.durations import costs_of_places
from ratrain.program.replicas import Recovery
from ratrain.program.setup import Setup
from ratrain.program.units import Ints
from ratrain.simulate.costs import Costs

Holders = tuple[tuple[int, ...], ...]
"""For each replica of a plan, the ranks that hold a unit."""


def uneven_unit_places(plan: UnevenPlan, setup: Setup) -> list[UnitPlace]:
    """Every unit of the setup in its place, in the order of the setup's members."""
    return _Places(plan, setup).all()


def uneven_costs(plan: UnevenPlan, setup: Setup) -> Costs:
    """The `Costs` of a plan's program; `setup` is the program's own, with its passes' marks."""
    return PlanCosts(plan).of(setup)


class PlanCosts:
    """The costs of a plan's programs. Units are put in their places once for all of them whose
    ranks recover alike: a short one differs from the whole in its micro-batches alone."""

    def __init__(self, plan: UnevenPlan) -> None:
        self._plan = plan
        self._known: dict[object, tuple[list[UnitPlace], Link | None]] = {}

    def of(self, setup: Setup) -> Costs:
        """The `Costs` of the program with this setup."""
        key = setup.first_rank, setup.tied, tuple(member.recovery for member in setup.members)
        if key not in self._known:
            places = _Places(self._plan, setup)
            self._known[key] = places.all(), places.farthest
        return costs_of_places(self._plan.job, setup, *self._known[key])


@dataclass(frozen=True)
class PlanLinks:
    """The links of a plan. `between`: for each replica, from each rank to the next; none where its
    stages have several members. `reductions`, `sums`: for each program rank the slowest of its
    gradients' and of its tensor group's; None where it has none."""

    between: tuple[tuple[Link, ...], ...]
    reductions: tuple[Link | None, ...]
    sums: tuple[Link | None, ...]


def links_of_plan(plan: UnevenPlan, setup: Setup) -> PlanLinks:
    """The `PlanLinks` of a plan; `setup` is its program's."""
    return _Places(plan, setup).links()


class _Places:
    """Where the units of a plan stand, and over which links."""

    def __init__(self, plan: UnevenPlan, setup: Setup) -> None:
        self._plan, self._setup = plan, setup
        self._devices = plan.devices
        self._geometry = Geometry(plan.job.cluster.spec, self._devices)
        self._deepest = max(replica.layout.pipeline for replica in plan.replicas)
        self._number = {device.index: place for place, device in enumerate(self._devices)}
        self._blocks = [
            blocks_of_stages(plan.job_of(replica, 0), replica.layout) for replica in plan.replicas
        ]
        self.messages_to = cache(self._messages_to)
        self.sums_link = cache(self._sums_link)
        self.links_of = cache(self._links_of)
        self.group_of = cache(self._group_of)
        self.rings_of = cache(self._rings)
        self.weight_bytes = cache(self._weight_bytes)

    def all(self) -> list[UnitPlace]:
        """Every unit in its place, in the order of the setup's members."""
        return [
            place
            for number, replica in enumerate(self._plan.replicas)
            for stage, rank in replica.held
            for place in self._of_member(number, stage, rank)
        ]

    def links(self) -> PlanLinks:
        """What leads from rank to rank."""
        ranks = [
            (number, rank)
            for number, replica in enumerate(self._plan.replicas)
            for rank in range(replica.ranks)
        ]
        return PlanLinks(
            tuple(
                tuple(
                    self._boundary_link(number, rank, rank + 1)
                    for rank in range(0 if replica.has_members else replica.ranks - 1)
                )
                for number, replica in enumerate(self._plan.replicas)
            ),
            tuple(self._slowest_reduction(*rank) for rank in ranks),
            tuple(self.sums_link(*rank) for rank in ranks),
        )

    def _slowest_reduction(self, number: int, rank: int) -> Link | None:
        """The slowest link over which a rank of a replica reduces any of its gradients."""
        groups = {held for held in self._holders.values() if rank in held[number]}
        links = (link for held in groups if self._shared(held) for _, link in self.links_of(held))
        return min(links, key=speed, default=None)

    def _shared(self, holders: Holders) -> bool:
        """Whether a unit has several holders."""
        return len(self.rings_of(holders)) > 1

    @cached_property
    def farthest(self) -> Link | None:
        """The used link of the longest latency; None for a plan of one device."""
        replicas = self._plan.replicas
        links = [
            self._boundary_link(number, here, there)
            for number, replica in enumerate(replicas)
            for before, after in pairwise(replica.places)
            for here, there in product(before, after)
            if _passed_on(replica, here, there)
        ]
        groups = filter(self._shared, dict.fromkeys(self._holders.values()))
        links += [link for held in groups for _, link in self.links_of(held)]
        links += [
            link
            for number, replica in enumerate(replicas)
            for rank in range(replica.ranks)
            if (link := self.sums_link(number, rank)) is not None
        ]
        return max(links, key=lambda link: link.latency_s) if links else None

    def _of_member(self, number: int, stage: int, rank: int) -> list[UnitPlace]:
        """The units of one stage of a replica, as a rank holds them."""
        replica, blocks = self._plan.replicas[number], self._blocks[number]
        layout, job = replica.layout_of(rank), self._plan.job_of(replica, rank)
        device = replica.groups[0][rank][0].kind
        member = self._setup.replicas[number].stages[stage].member_at(rank)
        assert member is not None
        times = {
            block.sort: times_in_layout(
                job,
                layout,
                block,
                device,
                self.sums_link(number, rank),
                selective=member.recovery is Recovery.SELECTIVE,
            )
            for block in blocks[stage]
        }
        reduced = reduced_bytes_per_param(device, job.schedule.dtype, job.schedule.gradient_wire)
        params = {
            block.sort: trained_params(job, block, self._deepest) / layout.tensor
            for block in blocks[stage]
        }
        counted = held_params if self._setup.sharding == 3 else trained_params
        return [
            UnitPlace(
                rank=self._setup.first_rank[number] + rank,
                kind=block.kind,
                device=device,
                layout=layout,
                times=times[block.sort],
                params=params[block.sort],
                view_bytes=self.weight_bytes(self._holders[block.kind, block.index])
                * (counted(job, block, self._deepest) / layout.tensor),
                reduced_bytes=reduced * params[block.sort],
                boundary_bytes=boundary_bytes(job),
                previous=self.messages_to(number, rank, stage - 1),
                following=self.messages_to(number, rank, stage + 1),
                sums_link=self.sums_link(number, rank),
                group=self.group_of(
                    self._holders[block.kind, block.index],
                    counted(job, block, self._deepest),
                    layout.tensor,
                ),
                other_end=self._other_end(number, rank),
                holders=len(self.rings_of(self._holders[block.kind, block.index])),
            )
            for block in blocks[stage]
        ]

    # ---- links ---------------------------------------------------------------------------

    def _groups(self, number: int, rank: int) -> list[tuple[Device, ...]]:
        """The tensor groups of a rank, of each of the replicas that are alike."""
        return [ranks[rank] for ranks in self._plan.replicas[number].groups]

    def _numbers(self, groups: Sequence[Sequence[Device]]) -> Ints:
        return np.array([[self._number[d.index] for d in group] for group in groups])

    def _sums_link(self, number: int, rank: int) -> Link | None:
        """The slowest link in the rings of a rank's tensor groups; None where it is alone."""
        groups = self._numbers(self._groups(number, rank))
        return self._geometry.rings(groups[None])[0] if groups.shape[1] > 1 else None

    def _boundary_link(self, number: int, source: int, target: int) -> Link:
        """The slowest link between two ranks of a replica. Between groups of one degree first
        devices stand for all, else every pair that has bytes for each other is looked at."""
        here = self._numbers(self._groups(number, source))
        there = self._numbers(self._groups(number, target))
        if here.shape[1] == there.shape[1]:
            here, there = here[:, :1], there[:, :1]
        parts = lcm(here.shape[1], there.shape[1])
        slots = np.arange(parts)
        sources = here[:, slots * here.shape[1] // parts].reshape(1, -1)
        targets = there[:, slots * there.shape[1] // parts].reshape(1, -1)
        return self._geometry.pairs(sources, targets)[0]

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
        link = self._boundary_link(number, here, there)
        device, inside = self._groups(number, here)[0][0].kind, self.sums_link(number, there)
        layout, degrees = replica.layout_of(here), (replica.tensor[here], replica.tensor[there])
        if degrees[0] == degrees[1]:
            whole = self._plan.job.backend.whole_sends
            sent = group_message(size_bytes, link, device, layout, inside, whole=whole)
        else:
            divided = replica.layout_of(there).sequence_parallel
            over = None if divided else inside
            sent = regrouped_message(size_bytes, link, device, degrees, gathered_over=over)
        base, serves = self._setup.first_rank[number], replica.serves[there]
        return StageMessage(base + there, link, sent, serves)

    def _other_end(self, number: int, rank: int) -> OtherEnd | None:
        """The rank with the other copy of a tied matrix."""
        tensor = self._plan.replicas[number].tensor
        last = len(tensor) - 1
        if not self._setup.tied or not last or rank not in (0, last):
            return None
        other = last - rank
        link = self._boundary_link(number, rank, other)
        smaller = min(tensor[0], tensor[last])
        return OtherEnd(self._setup.first_rank[number] + other, link, smaller)

    # ---- holders of a unit ---------------------------------------------------------------

    @cached_property
    def _holders(self) -> dict[tuple[str, int], Holders]:
        """Who holds each block, by its kind and index."""
        ranks: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        for replica, blocks in zip(self._plan.replicas, self._blocks, strict=True):
            for stage, parts in enumerate(blocks):
                for block in parts:
                    held = ranks.setdefault((block.kind, block.index), [])
                    held.append(replica.ranks_of(stage))
        return {block: tuple(held) for block, held in ranks.items()}

    def _rings(self, holders: Holders) -> list[tuple[Device, ...]]:
        """The groups that hold a unit, in the order of the replicas' numbers, and of members."""
        groups: dict[int, list[tuple[Device, ...]]] = {}
        for replica, held in zip(self._plan.replicas, holders, strict=True):
            for number, ranks in zip(replica.members, replica.groups, strict=True):
                groups[number] = [ranks[rank] for rank in held]
        return [group for number in sorted(groups) for group in groups[number]]

    def _weight_bytes(self, holders: Holders) -> int:
        """Bytes of a parameter as these gather it."""
        kinds = {group[0].kind for group in self.rings_of(holders)}
        return gathered_bytes_per_param(self._plan.job, kinds)

    def _links_of(self, holders: Holders) -> list[tuple[int, Link]]:
        """For each tensor degree among the holders, the slowest link that its ranks send on."""
        groups = self.rings_of(holders)
        degrees = np.array([len(group) for group in groups])
        parts = 1 if len(set(degrees.tolist())) == 1 else lcm(*degrees.tolist())
        rings = np.array(
            [
                [self._number[group[part * len(group) // parts].index] for group in groups]
                for part in range(parts)
            ]
        )
        return [
            (degree, self._geometry.sender(rings, degrees == degree))
            for degree in sorted(set(degrees.tolist()))
        ]

    def _group_of(self, holders: Holders, params: int, tensor: int) -> DataGroup | None:
        """The group that holds a unit of so many parameters, as a rank of a tensor degree sees
        it."""
        if not self._shared(holders):
            return None
        members = [group[0] for group in self.rings_of(holders)]
        job = self._plan.job
        name, cluster = job.collective, job.cluster.spec
        weight_bytes = self.weight_bytes(holders) * params

        @cache
        def half_of(link: Link) -> NamedHalf:
            return half_among(name, cluster, members, link, self._devices)

        def time_s(degree_and_link: tuple[int, Link]) -> float:
            degree, link = degree_and_link
            return half_of(link)(weight_bytes / degree).alone_s(link.bandwidth_bytes_per_s)

        slowest, link = max(self.links_of(holders), key=time_s)
        half, larger = half_of(link), tensor / slowest
        if tensor == slowest:
            return DataGroup(half, link, half.chosen)

        def as_slowest(size_bytes: float, widened: float = 1.0) -> Transfer:
            return half(size_bytes * larger, widened)

        def chosen(size_bytes: float, widened: float) -> str:
            return half.chosen(size_bytes * larger, widened)

        return DataGroup(as_slowest, link, chosen)


def _passed_on(replica: UnevenReplica, here: int, there: int) -> bool:
    """Whether ranks of neighbouring stages pass any micro-batch on to each other."""
    first, second = replica.serves[here], replica.serves[there]
    if first is None or second is None:
        return first != () and second != ()
    return not set(first).isdisjoint(second)
