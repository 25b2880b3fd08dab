"""Pass about checkpoints: the step's new states on their way to disk while the next step runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ratrain.program.actions import NONE, Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program


def save_states(program: Program) -> Program:
    """An asynchronous checkpoint without a copy: one Save a unit, in the order of the updates.

    Moves nothing; adds a Save behind each unit's update, on a lane of its own; last those of units
    that nobody updates, which read nothing, so that every rank has its turn. Safe because Save
    reads the new optimizer and the new weights, and whatever overwrites them (the next step's
    UpdateShard, PrefetchW) waits for it, as for any reader. So it costs no memory, and no time
    while the disk takes less than a step up to its updates.
    """

    def saves(rank: int, _lane: Lane, _actions: Iterable[Action]) -> Iterator[Action]:
        for action in program.lane(rank, Lane.UPDATE):
            if action.kind is Kind.UpdateShard:
                yield action._replace(kind=Kind.Save)
        for stage, member in program.held_by(rank):
            for number, unit in enumerate(member.units):
                if unit.frozen:
                    yield Action(Kind.Save, stage, number, NONE)

    return program.edit("save-states", Lane.DISK, by=saves)
