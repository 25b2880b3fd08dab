"""Pass about the loss of a rank: every optimizer state has a second owner on another device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ratrain.program.actions import NONE, Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program


def mirror(program: Program) -> Program:
    """Mirrored states: a buddy keeps each owner's master weights and moments in its host memory,
    of the very same version, so that no step is lost with any one rank.

    Adds a MirrorGradient behind each unit's last reduction: the owner's part of the gradient leaves
    for its buddy. Then all ranks meet in one Commit, before any update; and behind its own updates
    each rank makes those of its buddy's part (MirrorUpdate). Before the Commit nobody has changed a
    state; behind it every gradient of the step is on two ranks, and survivors finish the step. So
    there is no moment at which a version is nowhere whole, and no copy of the states travels: a
    third of the bytes that they have. Costs those bytes on the links, one more update a parameter,
    the host memory of the states and of a gradient, and the overlap of updates with backwards, as
    clipping does. Where states are not divided each rank that holds a unit has them all: there the
    Commit is enough. A program of one replica stays as it is.
    """
    setup = program.setup
    if not setup.reduces:
        return program
    changed = replace(setup, mirrored=True)

    def sent(_rank: int, _lane: Lane, actions: Iterable[Action]) -> list[Action]:
        ordered = list(actions)
        last = {action[1:3]: at for at, action in enumerate(ordered) if _reduces(action)}
        made: list[Action] = []
        for at, action in enumerate(ordered):
            made.append(action)
            if last.get(action[1:3]) == at and not setup.tied:
                made.append(Action(Kind.MirrorGradient, *action[1:3], NONE))
        if setup.tied:  # behind the sum of both copies
            made += [Action(Kind.MirrorGradient, *unit, NONE) for unit in last]
        return made

    def updated(rank: int, _lane: Lane, actions: Iterable[Action]) -> list[Action]:
        ordered = list(actions)
        updates = [at for at, a in enumerate(ordered) if a.kind is Kind.UpdateShard]
        first = min(number for number, _ in program.held_by(rank))
        begin = updates[0] if updates else len(ordered)
        mirrored = [
            ordered[at]._replace(kind=Kind.MirrorUpdate)
            for at in updates
            if changed.is_mirrored(_name(program, rank, ordered[at]))
        ]
        commit = Action(Kind.Commit, first, 0, NONE)
        return [*ordered[:begin], commit, *ordered[begin:], *mirrored]

    made = program.edit("mirror", Lane.UPDATE, by=updated, setup=changed)
    return made.edit("", Lane.REDUCE, by=sent) if setup.sharding else made


def _reduces(action: Action) -> bool:
    return action.kind is Kind.GradSync


def _name(program: Program, rank: int, action: Action) -> str:
    return dict(program.held_by(rank))[action.stage].units[action.unit].name
