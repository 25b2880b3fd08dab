"""Where the ranks of a program stand: their devices, the links between them, and who is idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratrain.describe.cluster import Device, Link
from ratrain.describe.device import DeviceKind
from ratrain.plan.case.case import Case
from ratrain.plan.case.uneven import UnevenCase
from ratrain.plan.file.uneven import UnevenPlan
from ratrain.plan.layout.placement import Placement
from ratrain.plan.price.uneven_places import links_of_plan
from ratrain.program.setup import Setup


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


def standing_of(case: Case | UnevenCase) -> Standing:
    """The `Standing` of a case."""
    if isinstance(case, UnevenCase):
        return standing_of_plan(case.plan, case.proved.short.setup)
    return standing_of_placement(case.placement, case.job.cluster.members())


def micro_batch_sizes(case: Case | UnevenCase) -> tuple[int, ...]:
    """Sequences of a micro-batch, in each replica that the program spells out."""
    if isinstance(case, UnevenCase):
        return tuple(replica.micro_batch for replica in case.plan.replicas)
    return (case.job.batch.micro_batch,) * len(case.setup.replicas)


def standing_of_placement(placement: Placement, members: Sequence[Device]) -> Standing:
    """The `Standing` of a layout; `members` are all devices of its job."""
    layout = placement.layout
    used = {device.index for device in placement.devices}
    reduces = [placement.data_link(r) if layout.data > 1 else None for r in range(layout.pipeline)]
    sums = [placement.tensor_link(r) if layout.tensor > 1 else None for r in range(layout.pipeline)]

    def devices(rank: int, replicas: Sequence[int]) -> tuple[Device, ...]:
        return tuple(
            placement.device(rank, data, tensor)
            for data in replicas
            for tensor in range(layout.tensor)
        )

    return Standing(
        tuple(
            RankPlace(devices(rank, alike.members), reduces[rank], sums[rank])
            for alike in placement.classes
            for rank in range(layout.pipeline)
        ),
        tuple(
            tuple(
                placement.stage_link(rank, rank + 1, alike.members)
                for rank in range(layout.pipeline - 1)
            )
            for alike in placement.classes
        ),
        tuple(device for device in members if device.index not in used),
    )


def standing_of_plan(plan: UnevenPlan, setup: Setup) -> Standing:
    """The `Standing` of a plan whose stages and replicas may differ; `setup` is its program's."""
    links = links_of_plan(plan, setup)
    devices = [
        tuple(device for groups in replica.groups for device in groups[rank])
        for replica in plan.replicas
        for rank in range(replica.ranks)
    ]
    used = {device.index for device in plan.devices}
    return Standing(
        tuple(map(RankPlace, devices, links.reductions, links.sums)),
        links.between,
        tuple(d for d in plan.job.cluster.members() if d.index not in used),
    )
