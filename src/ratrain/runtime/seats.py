"""Which process plays which part: world ranks, their place in the layout, and who their peers are.

World ranks count tensor within data within pipeline (`(pipeline * data + replica) * tensor + t`),
as placement does. A program spells out one replica of each class of alike ones, and one rank of
each tensor group; every member of the class, and of the group, plays the same program rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratrain.errors import SpecError
from ratrain.models.division import Division
from ratrain.program.setup import Setup


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

    pipeline: int
    data: int
    replica_class: tuple[int, ...]  # of each replica: its number among the program's replicas
    first_rank: tuple[int, ...]  # of each class: its first program rank
    tensor: int = 1

    @property
    def world_size(self) -> int:
        return self.pipeline * self.data * self.tensor

    def world_rank(self, pipeline: int, data: int, tensor: int) -> int:
        return (pipeline * self.data + data) * self.tensor + tensor

    def seat(self, world_rank: int) -> Seat:
        """The part of a world rank."""
        place, tensor = divmod(world_rank, self.tensor)
        pipeline, data = divmod(place, self.data)
        program_rank = self.first_rank[self.replica_class[data]] + pipeline
        division = Division(tensor, self.tensor)
        return Seat(world_rank, pipeline, data, program_rank, division)

    def all(self) -> list[Seat]:
        return [self.seat(rank) for rank in range(self.world_size)]

    def replica(self, data: int, tensor: int) -> list[int]:
        """World ranks of one replica with one number in their tensor groups, by pipeline rank."""
        return [self.world_rank(pipeline, data, tensor) for pipeline in range(self.pipeline)]

    def ends(self, data: int, tensor: int) -> list[int]:
        """World ranks that hold one part of a replica's first stage and of its last."""
        return [self.world_rank(pipeline, data, tensor) for pipeline in (0, self.pipeline - 1)]

    def data_group(self, pipeline: int, tensor: int) -> list[int]:
        """World ranks that hold the same part of the same stages, by replica."""
        return [self.world_rank(pipeline, data, tensor) for data in range(self.data)]

    def tensor_group(self, pipeline: int, data: int) -> list[int]:
        """World ranks that share one replica's stages, in order."""
        return [self.world_rank(pipeline, data, tensor) for tensor in range(self.tensor)]


def seats_of(setup: Setup, members: Sequence[Sequence[int]]) -> Seats:
    """The `Seats` of a program; `members[c]` are the replicas that class c stands for."""
    class_of = {
        data: number for number, class_members in enumerate(members) for data in class_members
    }
    ranks = {replica.ranks for replica in setup.replicas}
    if len(ranks) > 1:
        raise SpecError(
            "replicas of unequal depth cannot run yet",
            place="plan",
            fix="divide all replicas in the same way",
        )
    return Seats(
        pipeline=ranks.pop(),
        data=len(class_of),
        replica_class=tuple(class_of[data] for data in range(len(class_of))),
        first_rank=setup.first_rank,
        tensor=setup.tensor,
    )
