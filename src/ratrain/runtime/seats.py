"""Which process plays which part: world ranks, their place in the layout, and who their peers are.

World ranks count tensor within data within pipeline, as placement does; a replica that has fewer
pipeline ranks than another is left out where it has none, and each tensor group has its own degree.
So replicas of one depth and degree make a grid: `(pipeline * data + replica) * tensor + t`. A
program spells out one replica of each class of alike ones, and one rank of each tensor group; every
member of the class, and of the group, plays the same program rank.

Who reduces with whom does not follow from these numbers but from the setup: the ranks that hold a
unit, which in replicas of unequal stages are at different places of their pipelines.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from math import lcm

from ratrain.errors import SpecError
from ratrain.models.division import Division
from ratrain.program.setup import Setup

Holders = tuple[int, ...]
"""World ranks that hold a unit, those of each replica in their order."""
Groups = tuple[Holders, ...]
"""Of each replica the world ranks that share a unit."""


@dataclass(frozen=True)
class Seat:
    """The part of one process."""

    world_rank: int
    pipeline: int  # rank within the replica
    data: int  # number of the replica
    program_rank: int
    division: Division  # of the tensor group


@dataclass(frozen=True)
class Seats:
    """All parts of a run."""

    pipeline: int  # ranks of the deepest replica
    data: int
    replica_class: tuple[int, ...]  # of each replica: its number among the program's replicas
    first_rank: tuple[int, ...]  # of each class: its first program rank
    tensor: int = 1  # the largest degree of a tensor group
    depths: tuple[int, ...] = ()  # of each class: its pipeline ranks; (): all have `pipeline`
    degrees: tuple[tuple[int, ...], ...] = ()
    """Of each class: the tensor degree of each pipeline rank; (): all have `tensor`."""

    @property
    def world_size(self) -> int:
        return self._begins[-1]

    def depth(self, data: int) -> int:
        """Pipeline ranks of a replica."""
        return self.depths[self.replica_class[data]] if self.depths else self.pipeline

    def degree(self, pipeline: int, data: int) -> int:
        """Ranks of the tensor group at a pipeline position of a replica."""
        return self.degrees[self.replica_class[data]][pipeline] if self.degrees else self.tensor

    def world_rank(self, pipeline: int, data: int, tensor: int) -> int:
        return self._begins[self._numbers[pipeline, data]] + tensor

    def seat(self, world_rank: int) -> Seat:
        """The part of a world rank."""
        place = bisect_right(self._begins, world_rank) - 1
        pipeline, data = self._places[place]
        program_rank = self.first_rank[self.replica_class[data]] + pipeline
        division = Division(world_rank - self._begins[place], self.degree(pipeline, data))
        return Seat(world_rank, pipeline, data, program_rank, division)

    def all(self) -> list[Seat]:
        return [self.seat(rank) for rank in range(self.world_size)]

    def replica(self, data: int) -> list[int]:
        """World ranks of one replica, by pipeline rank."""
        return [
            rank
            for pipeline in range(self.depth(data))
            for rank in self.tensor_group(pipeline, data)
        ]

    def other_end(self, seat: Seat, part: Division) -> int:
        """Of what a replica's first and last rank both hold: the world rank that has a part of it
        at the end where `seat` is not. Both degrees divide the part's."""
        pipeline = 0 if seat.pipeline else self.depth(seat.data) - 1
        tensor = part.rank * self.degree(pipeline, seat.data) // part.degree
        return self.world_rank(pipeline, seat.data, tensor)

    def both_ends(self, data: int) -> list[int]:
        """World ranks of a replica's first and last tensor group, each once."""
        last = self.depth(data) - 1
        return list(dict.fromkeys(self.tensor_group(0, data) + self.tensor_group(last, data)))

    def tensor_group(self, pipeline: int, data: int) -> list[int]:
        """World ranks that share one replica's stages, in order."""
        first = self.world_rank(pipeline, data, 0)
        return list(range(first, first + self.degree(pipeline, data)))

    def tensor_groups(self) -> list[list[int]]:
        """All tensor groups, in the order of world ranks."""
        return [self.tensor_group(*place) for place in self._places]

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """(pipeline, data) of each tensor group, in the order of world ranks."""
        return [
            (pipeline, data)
            for pipeline in range(self.pipeline)
            for data in range(self.data)
            if pipeline < self.depth(data)
        ]

    @cached_property
    def _begins(self) -> list[int]:
        """The first world rank of each tensor group, and behind the last one how many there are."""
        return list(accumulate((self.degree(*place) for place in self._places), initial=0))

    @cached_property
    def _numbers(self) -> dict[tuple[int, int], int]:
        return {place: number for number, place in enumerate(self._places)}


def seats_of(setup: Setup, members: Sequence[Sequence[int]]) -> Seats:
    """The `Seats` of a program; `members[c]` are the replicas that class c stands for."""
    _require_degrees(setup)
    class_of = {
        data: number for number, class_members in enumerate(members) for data in class_members
    }
    depths = tuple(replica.ranks for replica in setup.replicas)
    degrees = degrees_of(setup)
    return Seats(
        pipeline=max(depths),
        data=len(class_of),
        replica_class=tuple(class_of[data] for data in range(len(class_of))),
        first_rank=setup.first_rank,
        tensor=setup.tensor,
        depths=depths if len(set(depths)) > 1 else (),
        degrees=degrees if len({*chain(*degrees)}) > 1 else (),
    )


def plays(seats: Seats, setup: Setup) -> bool:
    """Whether these are the seats of this program."""
    classes = range(len(setup.replicas))
    members = [
        [data for data, number in enumerate(seats.replica_class) if number == replica_class]
        for replica_class in classes
    ]
    if [len(alike) for alike in members] != [replica.count for replica in setup.replicas]:
        return False
    if not set(seats.replica_class) <= set(classes):
        return False
    return seats == seats_of(setup, members)


def holders_of(setup: Setup, seats: Seats, tensor: int) -> dict[str, Holders]:
    """For each unit that a rank with this number in its tensor group may hold, in model order,
    those that reduce its gradient together: the ranks of that number, replica by replica; all ranks
    that hold it where those that share it do so at different tensor degrees."""
    mixed = groups_of(setup, seats)
    places = _places_of(setup, seats)
    holders: dict[str, Holders] = {}
    for name in setup.unit_degrees:
        if name in mixed and len(mixed[name]) > 1:
            holders[name] = tuple(chain(*mixed[name]))
        elif here := [place for place in places[name] if tensor < seats.degree(*place)]:
            holders[name] = tuple(seats.world_rank(*place, tensor) for place in here)
    return holders


def site_of(setup: Setup, seats: Seats, world_rank: int) -> int | None:
    """The site of a rank's replica, where sites average weights."""
    replica = setup.replicas[seats.replica_class[seats.seat(world_rank).data]]
    return replica.site if setup.averages else None


def dividing(setup: Setup, seats: Seats) -> list[int]:
    """For each rank its group, whose tokens its loss is divided by: all ranks, since replicas share
    each gradient; where they, or sites, average weights they train alone in between, on their own
    tokens."""
    if not setup.averages:
        return [0] * seats.world_size
    sites = [site_of(setup, seats, rank) for rank in range(seats.world_size)]
    return [s.data if site is None else site for s, site in zip(seats.all(), sites, strict=True)]


def at_sites(setup: Setup, seats: Seats, holders: Holders) -> Groups:
    """Holders of a unit, site by site in their order; all together where no sites average
    weights."""
    by_site: dict[int | None, list[int]] = {}
    for rank in holders:
        by_site.setdefault(site_of(setup, seats, rank), []).append(rank)
    return tuple(tuple(by_site[site]) for site in sorted(by_site, key=lambda site: site or 0))


def numbers_at_sites(setup: Setup, seats: Seats) -> dict[str, tuple[Groups, ...]]:
    """For each unit that sites hold at other tensor degrees than each other, and average, of each
    site, number by number in its tensor groups, the ranks that hold it."""
    if not (setup.averages and setup.sites):
        return {}
    by_number = [holders_of(setup, seats, tensor) for tensor in range(seats.tensor)]
    found: dict[str, tuple[Groups, ...]] = {}
    for name, degrees in setup.unit_degrees.items():
        if len(set(degrees)) > 1:
            numbers = [at_sites(setup, seats, of[name]) for of in by_number if name in of]
            of_site: dict[int | None, list[Holders]] = {}
            for site in chain(*numbers):
                of_site.setdefault(site_of(setup, seats, site[0]), []).append(site)
            found[name] = tuple(map(tuple, of_site.values()))
    return found


def groups_of(setup: Setup, seats: Seats) -> dict[str, Groups]:
    """For each unit whose gradient is added up at different tensor degrees, by replicas or by the
    ends of a tied matrix, of each replica the ranks that hold it."""
    places = _places_of(setup, seats)
    return {
        name: tuple(tuple(seats.tensor_group(*place)) for place in places[name])
        for name in setup.mixed_degrees
    }


def _places_of(setup: Setup, seats: Seats) -> dict[str, list[tuple[int, int]]]:
    """For each unit the (pipeline, data) of all that hold it, replica by replica."""
    ranks = [
        {name: [m.rank for m in stage.members] for stage in replica.stages for name in stage.names}
        for replica in setup.replicas
    ]
    return {
        name: [
            (rank, data)
            for data, number in enumerate(seats.replica_class)
            for rank in ranks[number][name]
        ]
        for name in setup.unit_degrees
    }


def degrees_of(setup: Setup) -> tuple[tuple[int, ...], ...]:
    """For each replica that a program spells out, the tensor degree of each of its ranks."""
    return tuple(
        tuple(
            max(
                member.tensor
                for stage in replica.stages
                for member in stage.members
                if member.rank == rank
            )
            for rank in range(replica.ranks)
        )
        for replica in setup.replicas
    )


def parts_of_units(setup: Setup) -> dict[str, int]:
    """For each unit, in model order, in how many parts its ranks write it to checkpoints."""
    return {name: lcm(*degrees) for name, degrees in setup.sharing_degrees.items()}


def _require_degrees(setup: Setup) -> None:
    """Refuses tensor degrees that processes cannot have beside each other yet."""
    for replica, degrees in zip(setup.replicas, degrees_of(setup), strict=True):
        for member in (member for stage in replica.stages for member in stage.members):
            if member.tensor != degrees[member.rank]:
                raise SpecError(
                    f"stages of tensor {member.tensor} and {degrees[member.rank]} on one rank "
                    "cannot run",
                    place="plan",
                    fix="use one tensor degree for all stages of a rank",
                )
