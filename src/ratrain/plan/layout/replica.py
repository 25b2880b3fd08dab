"""Replicas of a plan that behave alike: stages, their members, and the devices of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from ratrain.describe.device import DeviceKind
from ratrain.describe.job import LayoutSpec
from ratrain.plan.layout.links import NO_SEATS, Groups, Seats, kinds_of_groups
from ratrain.program.replicas import Recovery

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

    def counts_of(self, rank: int) -> int:
        """How many micro-batches a rank computes."""
        share = self.serves[rank]
        return self.micro_batches if share is None else len(share)

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
        site = single.groups[0][0][0].site if by_site else ""
        key = replace(single, seats=NO_SEATS, entry=0), kinds_of_groups(single.groups[0]), site
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
