"""Which process plays which part: world ranks, their place in the layout, and who their peers are.

World ranks count tensor within data within pipeline, as placement does; a replica that has fewer
pipeline ranks than another is left out where it has none. So replicas of one depth make a grid:
`(pipeline * data + replica) * tensor + t`. A program spells out one replica of each class of alike
ones, and one rank of each tensor group; every member of the class, and of the group, plays the same
program rank.

Who reduces with whom does not follow from these numbers but from the setup: the ranks that hold a
unit, which in replicas of unequal stages are at different places of their pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ratrain.errors import SpecError
from ratrain.models.division import Division
from ratrain.program.setup import Setup

Holders = tuple[int, ...]
"""World ranks that hold a unit, those of each replica in their order."""


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
    tensor: int = 1
    depths: tuple[int, ...] = ()  # of each class: its pipeline ranks; (): all have `pipeline`

    @property
    def world_size(self) -> int:
        return len(self._places) * self.tensor

    def depth(self, data: int) -> int:
        """Pipeline ranks of a replica."""
        return self.depths[self.replica_class[data]] if self.depths else self.pipeline

    def world_rank(self, pipeline: int, data: int, tensor: int) -> int:
        return self._numbers[pipeline, data] * self.tensor + tensor

    def seat(self, world_rank: int) -> Seat:
        """The part of a world rank."""
        place, tensor = divmod(world_rank, self.tensor)
        pipeline, data = self._places[place]
        program_rank = self.first_rank[self.replica_class[data]] + pipeline
        division = Division(tensor, self.tensor)
        return Seat(world_rank, pipeline, data, program_rank, division)

    def all(self) -> list[Seat]:
        return [self.seat(rank) for rank in range(self.world_size)]

    def replica(self, data: int, tensor: int) -> list[int]:
        """World ranks of one replica with one number in their tensor groups, by pipeline rank."""
        return [self.world_rank(pipeline, data, tensor) for pipeline in range(self.depth(data))]

    def ends(self, data: int, tensor: int) -> list[int]:
        """World ranks that hold one part of a replica's first stage and of its last."""
        last = self.depth(data) - 1
        return [self.world_rank(pipeline, data, tensor) for pipeline in (0, last)]

    def tensor_group(self, pipeline: int, data: int) -> list[int]:
        """World ranks that share one replica's stages, in order."""
        return [self.world_rank(pipeline, data, tensor) for tensor in range(self.tensor)]

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
    def _numbers(self) -> dict[tuple[int, int], int]:
        return {place: number for number, place in enumerate(self._places)}


def seats_of(setup: Setup, members: Sequence[Sequence[int]]) -> Seats:
    """The `Seats` of a program; `members[c]` are the replicas that class c stands for."""
    _require_runnable(setup)
    class_of = {
        data: number for number, class_members in enumerate(members) for data in class_members
    }
    depths = tuple(replica.ranks for replica in setup.replicas)
    return Seats(
        pipeline=max(depths),
        data=len(class_of),
        replica_class=tuple(class_of[data] for data in range(len(class_of))),
        first_rank=setup.first_rank,
        tensor=setup.tensor,
        depths=depths if len(set(depths)) > 1 else (),
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
    """For each unit, in model order, the ranks that hold it with one number in their tensor groups:
    those that reduce its gradient together."""
    ranks = [
        {name: [m.rank for m in stage.members] for stage in replica.stages for name in stage.names}
        for replica in setup.replicas
    ]
    return {
        name: tuple(
            seats.world_rank(rank, data, tensor)
            for data, number in enumerate(seats.replica_class)
            for rank in ranks[number][name]
        )
        for name in ranks[0]
    }


def _require_runnable(setup: Setup) -> None:
    """Refuses what programs may say of members, and processes cannot play yet."""
    degrees = sorted({member.tensor for member in setup.members})
    if len(degrees) > 1:
        raise SpecError(
            f"tensor groups of {degrees[0]} and of {degrees[-1]} ranks together cannot run yet",
            place="plan",
            fix="use one tensor degree for all stages",
        )
