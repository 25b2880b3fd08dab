"""The plan as a picture: what each rank of each pipeline holds, on which devices, over which links.

Where the cluster is not known any more (a run whose job file is gone) devices have no names and
links no figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ratrain.describe.cluster import Link
from ratrain.describe.units import format_bytes_rate, format_time
from ratrain.plan.placement import Placement
from ratrain.plan.ranges import write_ranges
from ratrain.program.setup import Member, Recovery, Replica, Setup
from ratrain.report.contents import Card, Chain, PlanPicture
from ratrain.report.groups import grouped

RECOVERY = {
    Recovery.NONE: "activations kept",
    Recovery.SELECTIVE: "kept without attention scores",
    Recovery.FORWARD: "recomputed ahead of backward",
    Recovery.BACKWARD: "recomputed in backward",
}
CARDS = 64
"""Ranks of one pipeline drawn as cards."""


@dataclass(frozen=True)
class ProvedMemory:
    """What was proved of each program rank."""

    bound_bytes: Sequence[int]
    families: Sequence[Mapping[str, int]]
    budget_bytes: Sequence[int | None]


def picture(
    setup: Setup,
    placement: Placement | None,
    proved: ProvedMemory,
    facts: Iterable[tuple[str, str]],
) -> PlanPicture:
    """The `PlanPicture` of a program's setup."""
    return PlanPicture(
        tuple(facts),
        tuple(
            _chain(setup, number, replica, placement, proved)
            for number, replica in enumerate(setup.replicas)
        ),
        tuple(_group_links(setup, placement)) if placement is not None else (),
    )


def _chain(
    setup: Setup,
    number: int,
    replica: Replica,
    placement: Placement | None,
    proved: ProvedMemory,
) -> Chain:
    cards = tuple(
        _card(setup, number, replica, rank, placement, proved)
        for rank in range(min(replica.ranks, CARDS))
    )
    links: tuple[str, ...] = ()
    one_each = all(len(stage.members) == 1 for stage in replica.stages)
    if placement is not None and one_each:
        members = placement.classes[number].members
        links = tuple(
            link_words(placement.stage_link(rank, rank + 1, members))
            for rank in range(len(cards) - 1)
        )
    return Chain(replica.count, cards, links, one_each)


def _card(
    setup: Setup,
    number: int,
    replica: Replica,
    rank: int,
    placement: Placement | None,
    proved: ProvedMemory,
) -> Card:
    program_rank = setup.first_rank[number] + rank
    stages_held = [
        (at, member)
        for at, stage in enumerate(replica.stages)
        if (member := stage.member_at(rank)) is not None
    ]
    stages = write_ranges([at for at, _ in stages_held])
    kind, devices = "", ""
    if placement is not None:
        alike = placement.classes[number]
        kind = alike.kinds[rank]
        indices = [
            placement.device(rank, data, tensor).index
            for data in alike.members
            for tensor in range(setup.tensor)
        ]
        devices = f"device{'s' * (len(indices) > 1)} {_short_ranges(sorted(indices))}"
    members = [member for _, member in stages_held]
    modes = dict.fromkeys(RECOVERY[member.recovery] for member in members)
    served = [m.serves for m in members if m.serves is not None]
    shares = [f"{len(serves)} of {replica.micro_batches} micro-batches" for serves in served]
    return Card(
        rank=program_rank,
        stages=f"stage{'s' * (len(stages_held) > 1)} {stages}",
        layers=_layers(members),
        layer_count=sum(_is_layer(u.name) for member in members for u in member.units),
        recovery="; ".join([*modes, *shares]),
        device=kind,
        devices=devices,
        memory=grouped(proved.families[program_rank]),
        bound_bytes=proved.bound_bytes[program_rank],
        budget_bytes=proved.budget_bytes[program_rank],
    )


def _short_ranges(numbers: Sequence[int]) -> str:
    text = write_ranges(numbers)
    return text if len(text) <= 24 else f"{numbers[0]} ... {numbers[-1]} ({len(numbers)})"


def _is_layer(name: str) -> bool:
    return name not in ("e", "h")


def _layers(members: Sequence[Member]) -> str:
    """ "embedding, 2 layers": what a rank's stages hold, in order."""
    units = [unit for member in members for unit in member.units]
    count = sum(_is_layer(unit.name) for unit in units)
    parts = ["embedding"] if any(unit.name == "e" for unit in units) else []
    parts += [f"{count} layer{'s' * (count != 1)}"] if count else []
    parts += ["head"] if any(unit.head for unit in units) else []
    return ", ".join(parts)


def link_words(link: Link) -> str:
    """ "12.5 MB/s, 100 us": a link's bandwidth and latency."""
    return f"{format_bytes_rate(link.bandwidth_bytes_per_s)}, {format_time(link.latency_s)}"


def _group_links(setup: Setup, placement: Placement) -> Iterable[tuple[str, str]]:
    """The slowest link of each sort of group, once where all stages have the same."""
    layout = placement.layout
    if setup.data > 1:
        links = [link_words(placement.data_link(rank)) for rank in range(layout.pipeline)]
        yield f"between {setup.data} replicas", _same(links)
    if setup.tensor > 1:
        links = [link_words(placement.tensor_link(rank)) for rank in range(layout.pipeline)]
        yield f"in tensor groups of {setup.tensor}", _same(links)


def _same(links: Sequence[str]) -> str:
    kinds = list(dict.fromkeys(links))
    if len(kinds) == 1:
        return kinds[0]
    return "; ".join(
        f"stage {write_ranges([at for at, link in enumerate(links) if link == kind])}: {kind}"
        for kind in kinds[:4]
    ) + ("; ..." if len(kinds) > 4 else "")
