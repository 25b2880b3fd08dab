"""Where the ranks of a program stand: their devices, the links between them, and who is idle."""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.describe.cluster import Device, Link
from ratrain.describe.device import DeviceKind
from ratrain.plan.layout.geometry import speed
from ratrain.plan.layout.plan import Plan


@dataclass(frozen=True)
class RankPlace:
    """The devices of a program rank: of all replicas that are folded into its own, one replica
    after the other. `reduces_over`, `sums_over`: the slowest link of its gradient reductions, and
    of its tensor group; None where it has none."""

    devices: tuple[Device, ...]
    reduces_over: Link | None
    sums_over: Link | None

    @property
    def kind(self) -> DeviceKind:
        return self.devices[0].kind


@dataclass(frozen=True)
class Standing:
    """`links`: for each replica the program spells out, the link from each rank to the next; none
    where its stages have several members."""

    ranks: tuple[RankPlace, ...]
    links: tuple[tuple[Link, ...], ...]
    idle: tuple[Device, ...] = ()


def standing_of(plan: Plan) -> Standing:
    """The `Standing` of a plan."""
    links = plan.links
    ranks = [(number, rank) for number, r in enumerate(plan.replicas) for rank in range(r.ranks)]
    return Standing(
        tuple(
            RankPlace(
                tuple(d for groups in plan.replicas[number].groups for d in groups[rank]),
                _slowest_reduction(plan, number, rank),
                links.sums(number, rank),
            )
            for number, rank in ranks
        ),
        tuple(
            tuple(
                links.between(number, rank, rank + 1)
                for rank in range(0 if replica.has_members else replica.ranks - 1)
            )
            for number, replica in enumerate(plan.replicas)
        ),
        plan.idle,
    )


def _slowest_reduction(plan: Plan, number: int, rank: int) -> Link | None:
    """The slowest link over which a rank of a replica reduces any of its gradients."""
    groups = {held for held in plan.holders.values() if rank in held[number]}
    shared = (held for held in groups if len(plan.links.groups_that_hold(held)) > 1)
    links = (link for held in shared for _, link in plan.links.reducing(held))
    return min(links, key=speed, default=None)
