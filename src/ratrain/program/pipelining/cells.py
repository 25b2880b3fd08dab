"""What a cell of a schedule says, and where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from ratrain.program.pipelining.stages import micro_batches_of, ranks_of_stages


class Act(StrEnum):
    """What an action does, spelled as PyTorch spells it."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHTS = "W"
    FULL_FORWARD_BACKWARD = "FULL_FORWARD_BACKWARD"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE_GRAD = "REDUCE_GRAD"
    WAIT_REDUCE_GRAD = "WAIT_REDUCE_GRAD"


COMPUTE = frozenset((Act.FORWARD, Act.BACKWARD, Act.INPUT, Act.WEIGHTS, Act.FULL_FORWARD_BACKWARD))
SENDS = frozenset((Act.SEND_F, Act.SEND_B))
RECEIVES = frozenset((Act.RECV_F, Act.RECV_B))
MESSAGES = SENDS | RECEIVES

GROUPS = {"OVERLAP_F_B": COMPUTE, "BATCH_P2P": MESSAGES}
"""What cells of several actions are called, and which actions they may hold."""


@dataclass(frozen=True)
class Action:
    """One action. `rank` is its row, `cell` its place in the row, `part` its place in the cell; all
    count from 0."""

    act: Act
    stage: int
    micro_batch: int
    """-1 where the act belongs to no micro-batch."""
    rank: int
    cell: int
    part: int = 0

    @property
    def word(self) -> str:
        return f"{self.stage}{self.act}{self.micro_batch if self.micro_batch >= 0 else ''}"

    @property
    def place(self) -> str:
        return f"row {self.rank + 1}, cell {self.cell + 1}"

    @property
    def turn(self) -> tuple[int, int]:
        """Orders the actions of a row."""
        return self.cell, self.part

    def __str__(self) -> str:
        return f"{self.word} ({self.place})"


@dataclass(frozen=True)
class Cell:
    """One cell that is not empty: its actions, several where it is a group."""

    actions: tuple[Action, ...]
    group: str = ""

    @property
    def word(self) -> str:
        words = ";".join(action.word for action in self.actions)
        return f"({words}){self.group}" if self.group else words


@dataclass(frozen=True)
class Schedule:
    """The cells of every rank, in order."""

    rows: tuple[tuple[Cell, ...], ...]
    place: str = ""

    def row(self, rank: int) -> Iterator[Action]:
        """The actions of a rank, those of a group one after the other."""
        for cell in self.rows[rank]:
            yield from cell.actions

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """All actions, row by row."""
        return tuple(action for rank in range(len(self.rows)) for action in self.row(rank))

    @property
    def computes_only(self) -> bool:
        """Whether it says nothing of messages, weights or reductions."""
        return all(action.act in COMPUTE for action in self.actions)

    @cached_property
    def rank_of(self) -> tuple[int, ...]:
        """The rank of each stage: where it is computed. An error where that is not one rank."""
        return ranks_of_stages(((a.stage, a.rank) for a in self._computed), self.place)

    @property
    def stages(self) -> int:
        return len(self.rank_of)

    @cached_property
    def of_stages(self) -> tuple[tuple[Action, ...], ...]:
        """What the rank of each stage does for it, in order."""
        found: list[list[Action]] = [[] for _ in self.rank_of]
        for action in self.actions:
            if action.stage < self.stages and action.rank == self.rank_of[action.stage]:
                found[action.stage].append(action)
        return tuple(map(tuple, found))

    @cached_property
    def micro_batches(self) -> int:
        """One more than the highest micro-batch that is computed."""
        return micro_batches_of((a.micro_batch for a in self._computed), self.place)

    @property
    def _computed(self) -> Iterator[Action]:
        return (action for action in self.actions if action.act in COMPUTE)


def steps_of(action: Action) -> tuple[Act, ...]:
    """The steps of compute that an action takes: F, B, I or W, or none."""
    if action.act is Act.FULL_FORWARD_BACKWARD:
        return Act.FORWARD, Act.BACKWARD
    return (action.act,) if action.act in COMPUTE else ()
