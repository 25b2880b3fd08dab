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
from ratrain.program.columns import LaneOps, Rows, as_columns
from ratrain.program.kind import Lane
from ratrain.program.replicas import Member
from ratrain.program.setup import Setup
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
        changed: dict[tuple[int, Lane], LaneOps] = {
            (rank, lane): tuple(by(rank, lane, self.lane(rank, lane)))
            for rank in range(self.setup.ranks)
            for lane in lanes
        }
        return self._with_lanes(changed, name, setup)

    def edit_rows(
        self, name: str, lane: Lane, *, by: EditRows, setup: Setup | None = None
    ) -> Program:
        """The program that a pass over many ops returns: `by(rank, rows)` in place of every
        rank's rows of a lane (`columns`). Without a name it is part of the pass before."""
        lanes = as_columns(self.lanes)
        changed: dict[tuple[int, Lane], LaneOps] = {
            (rank, lane): by(rank, lanes.rows_of((rank, lane))) for rank in range(self.setup.ranks)
        }
        return self._with_lanes(changed, name, setup)

    def _with_lanes(
        self, changed: Mapping[tuple[int, Lane], LaneOps], name: str, setup: Setup | None
    ) -> Program:
        lanes = as_columns(self.lanes).with_lanes(changed)
        return Program(setup or self.setup, lanes, (*self.passes, *([name] if name else [])))

    def with_setup(self, setup: Setup) -> Program:
        """The same lanes under another header."""
        return replace(self, setup=setup)


Edit = Callable[[int, Lane, tuple[Action, ...]], Iterable[Action]]
EditRows = Callable[[int, Rows], Rows]
