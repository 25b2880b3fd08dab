"""The plan as a picture: what each rank of each pipeline holds, on which devices, over which links.

Where the cluster is not known any more (a run whose job file is gone) devices have no names and
links no figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ratrain.describe.cluster import Link
from ratrain.describe.ranges import write_ranges
from ratrain.describe.units import format_bytes_rate, format_time
from ratrain.plan.case import Standing
from ratrain.program.replicas import Member, Recovery, Replica
from ratrain.program.setup import Setup
from ratrain.report.contents import Card, Chain, IdleDevices, PlanPicture
from ratrain.report.groups import grouped

RECOVERY = {
    Recovery.NONE: "activations kept",
    Recovery.SELECTIVE: "kept without attention scores",
    Recovery.SPILL: "activations in another tier",
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
    standing: Standing | None,
    proved: ProvedMemory,
    facts: Iterable[tuple[str, str]],
    shares: Sequence[str] = (),
) -> PlanPicture:
    """The `PlanPicture` of a program's setup. `shares`: each replica's part of a step, where
    replicas differ."""
    return PlanPicture(
        tuple(facts),
        tuple(
            _chain(setup, number, replica, standing, proved, shares[number] if shares else "")
            for number, replica in enumerate(setup.replicas)
        ),
        tuple(_group_links(setup, standing)) if standing is not None else (),
        tuple(_idle(standing)) if standing is not None else (),
    )


def _idle(standing: Standing) -> Iterable[IdleDevices]:
    """The devices that no stage is on, by kind."""
    by_kind: dict[str, list[int]] = {}
    for device in standing.idle:
        by_kind.setdefault(device.kind.name, []).append(device.index)
    for kind, indices in by_kind.items():
        yield IdleDevices(kind, _devices_words(indices), len(indices))


def _chain(
    setup: Setup,
    number: int,
    replica: Replica,
    standing: Standing | None,
    proved: ProvedMemory,
    share: str,
) -> Chain:
    cards = tuple(
        _card(setup, number, replica, rank, standing, proved)
        for rank in range(min(replica.ranks, CARDS))
    )
    links: tuple[str, ...] = ()
    one_each = all(len(stage.members) == 1 for stage in replica.stages)
    if standing is not None and one_each:
        links = tuple(map(link_words, standing.links[number][: len(cards) - 1]))
    return Chain(replica.count, cards, links, one_each, share)


def _card(
    setup: Setup,
    number: int,
    replica: Replica,
    rank: int,
    standing: Standing | None,
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
    if standing is not None:
        place = standing.ranks[program_rank]
        kind = place.kind.name
        devices = _devices_words(sorted(device.index for device in place.devices))
    members = [member for _, member in stages_held]
    modes = dict.fromkeys(RECOVERY[member.recovery] for member in members)
    served = [m.serves for m in members if m.serves is not None]
    shares = [f"{len(serves)} of {replica.micro_batches} micro-batches" for serves in served]
    shares += [f"{m.joined} micro-batches at once" for m in members if m.joined > 1]
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


def _devices_words(indices: Sequence[int]) -> str:
    """ "device 3", "devices 0-3"."""
    return f"device{'s' * (len(indices) > 1)} {_short_ranges(indices)}"


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


def _group_links(setup: Setup, standing: Standing) -> Iterable[tuple[str, str]]:
    """The slowest link of each sort of group, once where all ranks have the same."""
    reduces = [place.reduces_over for place in standing.ranks]
    sums = [place.sums_over for place in standing.ranks]
    if any(reduces):
        among = f"{setup.data} replicas" if setup.data > 1 else "members of a stage"
        yield f"between {among}", _same(reduces)
    if any(sums):
        degrees = sorted({member.tensor for member in setup.members} - {1})
        yield f"in tensor groups of {' and '.join(map(str, degrees))}", _same(sums)


def _same(links: Sequence[Link | None]) -> str:
    """ "12.5 MB/s, 100 us", or the same by rank."""
    words = ["" if link is None else link_words(link) for link in links]
    kinds = list(dict.fromkeys(filter(None, words)))
    if len(kinds) == 1:
        return kinds[0]
    return "; ".join(
        f"rank {write_ranges([at for at, link in enumerate(words) if link == kind])}: {kind}"
        for kind in kinds[:4]
    ) + ("; ..." if len(kinds) > 4 else "")
