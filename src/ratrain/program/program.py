"""A program: for each rank and lane an ordered list of actions, under a setup.

Order between lanes comes only from states (`rules`). A program spells out one step, or the several
of a period; it repeats, and states that outlive it (views, optimizer shards) carry its order into
the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ratrain.program.actions import Action
from ratrain.program.kind import Lane
from ratrain.program.setup import Member, Setup
from ratrain.program.table import Table, bind

Lanes = Mapping[tuple[int, Lane], tuple[Action, ...]]


@dataclass(frozen=True)
class Program:
    """One training step of every rank, or a period of several. `passes` names what made it, in
    order."""

    setup: Setup
    lanes: Lanes
    passes: tuple[str, ...] = ()

    @cached_property
    def table(self) -> Table:
        """The same program as columns; made once, used by the verifier and both executors."""
        return bind(self.setup, self.lanes)

    def lane(self, rank: int, lane: Lane) -> tuple[Action, ...]:
        """The actions of one lane; empty where the rank has no such lane."""
        return self.lanes.get((rank, lane), ())

    def held_by(self, rank: int) -> list[tuple[int, Member]]:
        """(stage number, member) for each stage that a rank is a member of, in model order."""
        index = self.setup.replica_of(rank)
        local = rank - self.setup.first_rank[index]
        stages = self.setup.replicas[index].stages
        held = ((number, stage.member_at(local)) for number, stage in enumerate(stages))
        return [(number, member) for number, member in held if member is not None]

    def edit(self, name: str, *lanes: Lane, by: Edit, setup: Setup | None = None) -> Program:
        """The program a pass returns: `by(rank, lane, actions)` applied to the lanes named."""
        edited = dict(self.lanes)
        for rank in range(self.setup.ranks):
            for lane in lanes:
                actions = tuple(by(rank, lane, self.lane(rank, lane)))
                if actions:
                    edited[rank, lane] = actions
                else:
                    edited.pop((rank, lane), None)
        return Program(setup or self.setup, edited, (*self.passes, name))

    def with_setup(self, setup: Setup) -> Program:
        """The same lanes under another header."""
        return replace(self, setup=setup)


Edit = Callable[[int, Lane, tuple[Action, ...]], Iterable[Action]]
