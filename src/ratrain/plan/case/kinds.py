"""A plan by kind of device: what each holds, how busy it is, what binds it, what would help; and
what the network inside a chip makes of its sums, and what another one would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ratrain.cost.collectives import ring_all_reduce
from ratrain.describe.cluster import ChipLink
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import ClusterChoice
from ratrain.describe.on_chip import BY, ChipNetwork
from ratrain.errors import RatrainError
from ratrain.plan.case.case import Case, Standing
from ratrain.plan.layout.placement import Placement
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.sizes import boundary_bytes
from ratrain.plan.layout.times import tensor_sums
from ratrain.plan.price.trial import only_over_budget
from ratrain.plan.price.what_if import computing_faster, sending_faster
from ratrain.program.bounds import PeakBound
from ratrain.program.kind import Waiting
from ratrain.program.replicas import Replica
from ratrain.simulate.costs import Costs
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.result import RankTimes
from ratrain.simulate.simulate import Simulation

FASTER = 2.0
"""How many times as fast a kind's devices or links are made to see what that would bring."""
NOTABLE = 0.005
"""A gain below this part of the step is none."""
MOSTLY = 0.75
"""Of the step: a kind that computes for longer is bound by it, even where others are as slow."""
LINKS = (Waiting.MESSAGE, Waiting.REDUCE, Waiting.GATHER, Waiting.TENSOR)
Resource = Literal["compute", "links", "memory", "recovery"]
"""What a kind may lack. Recovery: it recovers what it has memory to keep."""


@dataclass(frozen=True)
class KindPlace:
    """The stages that devices of one kind hold in replicas that behave alike; one that several of
    them are members of is there for each."""

    replica: int  # which the program spells out
    replicas: int  # that it stands for
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    of_stages: int
    layers: tuple[int, ...]  # of each stage held
    embedding: bool
    head: bool
    tensor: tuple[int, ...]  # of each rank
    micro_batches: int  # of one replica
    micro_batch: int
    served: tuple[int, ...]  # how many of them, for each stage held
    at_once: tuple[int, ...]  # sequences that each stage held computes at once


@dataclass(frozen=True)
class WhatIf:
    """The step of the same plan if a kind's resource were not scarce. Memory, recovery: if it kept
    every activation, for which its fullest rank lacks `missing_bytes`; recovery: none."""

    resource: Resource
    step_time_s: float
    missing_bytes: int = 0


@dataclass(frozen=True)
class KindPart:
    """One kind of device in a plan. Shares of time are means over its devices that are used."""

    kind: DeviceKind
    devices: tuple[int, ...]
    idle: tuple[int, ...]
    places: tuple[KindPlace, ...]
    work_share: float  # of all layers x sequences
    compute_share: float  # of the step, forward and backward
    recovery_share: float
    links_share: float  # waiting for messages and collectives
    others_share: float  # waiting for other ranks
    fullest: PeakBound | None
    budget_bytes: int | None  # the fullest rank's
    what_ifs: tuple[WhatIf, ...]
    dtype: str  # that it computes in

    def binding(self, step_s: float) -> WhatIf | None:
        """What would shorten the step most; None where nothing of its own does."""
        best = min(self.what_ifs, key=lambda what_if: what_if.step_time_s, default=None)
        if best is None or best.step_time_s > step_s * (1 - NOTABLE):
            return None
        return best

    def binds(self, step_s: float) -> Resource | None:
        """What binds it. Where nothing of its own alone would shorten the step, compute if it is at
        work for most of it: then kinds are in balance; else None, it waits for the others."""
        best = self.binding(step_s)
        if self.over_budget_bytes:
            return "memory"
        if best is not None:
            return best.resource
        return "compute" if self.compute_share + self.recovery_share > MOSTLY else None

    @property
    def over_budget_bytes(self) -> int:
        """Of the fullest rank; 0 where it fits."""
        if self.fullest is None or self.budget_bytes is None:
            return 0
        return max(self.fullest.total_bytes - self.budget_bytes, 0)


def kind_parts(case: Case, simulation: Simulation) -> tuple[KindPart, ...]:
    """The `KindPart` of each kind of a plan, in the cluster's order; none where all is alike."""
    if case.plan.is_layout and len(case.job.cluster.kinds) == 1:
        return ()
    setup, standing = case.setup, case.standing()  # with all micro-batches, unlike a program
    kinds = {kind.name: kind for kind in case.job.cluster.kinds}
    places = {name: tuple(_places(case, standing, name)) for name in kinds}
    work = {name: sum(map(_work, of_kind)) for name, of_kind in places.items()}
    parts: list[KindPart] = []
    for name, kind in kinds.items():
        ranks = [r for r, place in enumerate(standing.ranks) if place.kind.name == name]
        times = [(simulation.ranks[rank], len(standing.ranks[rank].devices)) for rank in ranks]
        fullest = simulation.fullest(ranks)
        parts.append(
            KindPart(
                kind,
                tuple(sorted(d.index for rank in ranks for d in standing.ranks[rank].devices)),
                tuple(device.index for device in standing.idle if device.kind.name == name),
                places[name],
                work[name] / (sum(work.values()) or 1),
                *_shares(times, simulation.step_time_s),
                fullest,
                None if fullest is None else setup.budget_of(fullest.rank),
                tuple(_what_ifs(case, simulation, ranks)),
                case.job.dtype_of(kind),
            )
        )
    return tuple(parts)


def _places(case: Case, standing: Standing, kind: str) -> Iterator[KindPlace]:
    """One for each replica that the program spells out, where it has ranks of the kind."""
    setup, sizes = case.setup, [replica.micro_batch for replica in case.plan.replicas]
    for number, (first, replica) in enumerate(zip(setup.first_rank, setup.replicas, strict=True)):
        ranks = [r for r in range(replica.ranks) if standing.ranks[first + r].kind.name == kind]
        if ranks:
            yield _place(number, first, replica, ranks, sizes[number])


def _place(
    number: int, first: int, replica: Replica, ranks: list[int], micro_batch: int
) -> KindPlace:
    held = [
        (at, member)
        for at, stage in enumerate(replica.stages)
        for member in stage.members
        if member.rank in ranks
    ]
    names = {unit.name for _, member in held for unit in member.units}
    return KindPlace(
        number,
        replica.count,
        tuple(first + rank for rank in ranks),
        tuple(at for at, _ in held),
        len(replica.stages),
        tuple(sum(u.name not in ("e", "h") for u in member.units) for _, member in held),
        "e" in names,
        "h" in names,
        tuple(next(m.tensor for _, m in held if m.rank == rank) for rank in ranks),
        replica.micro_batches,
        micro_batch,
        tuple(len(replica.serves(member)) for _, member in held),
        tuple(micro_batch * member.joined for _, member in held),
    )


def _work(place: KindPlace) -> int:
    """Layers times sequences, over all replicas."""
    micro_batches = sum(
        layers * served for layers, served in zip(place.layers, place.served, strict=True)
    )
    return place.replicas * micro_batches * place.micro_batch


def _shares(
    times: Sequence[tuple[RankTimes, int]], step_s: float
) -> tuple[float, float, float, float]:
    """Of the step: compute, recovery, waiting for links, waiting for others; means over devices."""
    devices = sum(count for _, count in times)
    if not devices:
        return 0.0, 0.0, 0.0, 0.0

    def mean(seconds: Sequence[float]) -> float:
        whole = sum(s * count for s, (_, count) in zip(seconds, times, strict=True))
        return whole / (devices * step_s)

    compute = mean([time.compute_s + time.driving_s for time, _ in times])
    recovery = mean([time.recovery_s for time, _ in times])
    links = mean([sum(time.waiting_s[kind] for kind in LINKS) for time, _ in times])
    return compute, recovery, links, max(1 - compute - recovery - links, 0.0)


def _what_ifs(case: Case, simulation: Simulation, ranks: Sequence[int]) -> Iterator[WhatIf]:
    """What faster devices, faster links and more memory of some ranks would make of the step."""
    if not ranks:
        return
    proved, costs = case.proved, case.costs
    setup = proved.short.setup

    def step_s(changed: Costs) -> float:
        return simulate_proved(proved, changed).step_time_s

    yield WhatIf("compute", step_s(computing_faster(costs, setup, ranks, FASTER)))
    yield WhatIf("links", step_s(sending_faster(costs, setup, ranks, FASTER)))
    if any(simulation.ranks[rank].recovery_s > 0 for rank in ranks):
        kept = _kept(case.plan, ranks)
        if kept is not None:
            yield kept


def _kept(subject: Plan, ranks: Sequence[int]) -> WhatIf | None:
    """The plan whose ranks keep every activation; None where it is no plan any more: at sharding 3
    replicas must recover alike."""
    try:
        case = Case(subject.keeping(ranks))
        if not only_over_budget(case.proved.verdict):
            return None
        step_s = case.simulation.step_time_s
    except RatrainError:
        return None
    over = [
        bound.total_bytes - (case.setup.budget_of(bound.rank) or bound.total_bytes)
        for bound in case.proved.verdict.bounds
        if bound.rank in ranks
    ]
    missing = max(0, *over)
    return WhatIf("memory" if missing else "recovery", step_s, missing)


RING = "ring"


@dataclass(frozen=True)
class SumsBy:
    """A way to make a plan's sums, "hardware", "software" or "ring": seconds of one, and the step
    that the same plan takes where it is all there is."""

    by: str
    sum_s: float
    step_time_s: float
    used: bool


@dataclass(frozen=True)
class OnChip:
    """Sums of tensor groups inside chips."""

    network: ChipNetwork
    devices: int  # of a group
    size_bytes: int
    ways: tuple[SumsBy, ...]


def sums_on_chip(case: Case) -> OnChip | None:
    """What the plan's sums take; None where no tensor group is inside a chip whose network is
    known. Those of divided sequences are halves of sums, which stay a ring's."""
    if not case.plan.is_layout:
        return None
    placed, layout = case.plan.placement, case.plan.layout
    if layout.tensor == 1 or case.plan.sequence_parallel:
        return None
    link = placed.links.tensor[0]
    if not isinstance(link, ChipLink) or link.network is None:
        return None
    size = boundary_bytes(case.job)
    used_s = tensor_sums(1, size, layout, link).alone_s(link.bandwidth_bytes_per_s)
    ways = tuple(_ways(case, link, link.network, size, used_s))
    return OnChip(link.network, layout.tensor, size, ways)


def _ways(
    case: Case, link: ChipLink, network: ChipNetwork, size: int, used_s: float
) -> Iterator[SumsBy]:
    devices = case.plan.layout.tensor
    ring_s = ring_all_reduce(size, devices, link).alone_s(link.bandwidth_bytes_per_s)
    networks: dict[str, ChipNetwork | None] = {RING: None}
    times: dict[str, float] = {RING: ring_s}
    for by in BY:
        sum_s = network.sum_s(size, devices, by)
        if sum_s is not None:
            networks[by], times[by] = replace(network, has=by), sum_s
    for by, other in networks.items():
        changed = Case(_with_network(case.plan, other))
        step_s = simulate_proved(case.proved, changed.costs).step_time_s
        yield SumsBy(by, times[by], step_s, used_s == times[by])


def _with_network(plan: Plan, network: ChipNetwork | None) -> Plan:
    """The plan of a layout on a cluster whose chips have another network, on which nothing depends
    that its program says."""
    cluster, placed = plan.job.cluster, plan.placement
    kinds = tuple(replace(kind, chip=network) for kind in cluster.spec.device)
    spec = replace(cluster.spec, device=kinds)
    devices = spec.devices(cluster.devices)
    there = tuple(devices[device.index] for device in placed.devices)
    placed = Placement(spec, placed.layout, there, placed.by_site)
    seated = zip(plan.replicas, placed.seats, strict=True)
    return replace(
        plan,
        job=replace(plan.job, cluster=ClusterChoice(spec, cluster.devices)),
        placed=placed,
        replicas=tuple(replace(replica, seats=seats) for replica, seats in seated),
    )
