"""A program in which every replica is written out, also those that behave alike.

A program folds identical replicas into one, which is enough for its proof and for mean times. Where
replicas differ in nothing but luck, as ranks do whose processors pause, each has to be there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ratrain.program.program import Program
from ratrain.program.setup import Budget, Setup


@dataclass(frozen=True)
class Unfolded:
    """`folded_rank`: for each rank of the program, the rank that stood for it."""

    program: Program
    folded_rank: tuple[int, ...]

    @property
    def first_of_each(self) -> dict[int, int]:
        """For each rank that stood for several, the first of them."""
        return {folded: rank for rank, folded in reversed([*enumerate(self.folded_rank)])}


def unfolded_ops(program: Program) -> int:
    """How many ops the program has with all of its replicas."""
    setup = program.setup
    return sum(
        setup.replicas[setup.replica_of(rank)].count * len(actions)
        for (rank, _), actions in program.lanes.items()
    )


def unfolded(program: Program) -> Unfolded:
    """The program with all of its replicas, those of one kind after each other."""
    setup = program.setup
    folded_rank = tuple(
        first + local
        for first, replica in zip(setup.first_rank, setup.replicas, strict=True)
        for _ in range(replica.count)
        for local in range(replica.ranks)
    )
    if len(folded_rank) == setup.ranks:
        return Unfolded(program, folded_rank)
    replicas = tuple(
        replace(replica, count=1) for replica in setup.replicas for _ in range(replica.count)
    )
    budgets = tuple(
        replace(budget, first_rank=rank, last_rank=rank)
        for rank, folded in enumerate(folded_rank)
        for budget in _budgets_of(setup, folded)
    )
    lanes = {
        (rank, lane): actions
        for rank, folded in enumerate(folded_rank)
        for (owner, lane), actions in program.lanes.items()
        if owner == folded
    }
    whole = replace(setup, replicas=replicas, budgets=budgets)
    return Unfolded(Program(whole, lanes, program.passes), folded_rank)


def _budgets_of(setup: Setup, rank: int) -> list[Budget]:
    return [each for each in setup.budgets if each.first_rank <= rank <= each.last_rank]
