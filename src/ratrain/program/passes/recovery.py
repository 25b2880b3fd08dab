"""Passes about activations: keep them, or compute them again, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.setup import Member, Recovery, Setup

_GRADIENT = (Kind.B, Kind.I)


def recover_at_backward(program: Program, *, heads: bool = False) -> Program:
    """Backward-time recovery: a unit's activations are computed again just before its backward.

    Moves nothing; adds one R before each B (or I) of a recoverable unit. Safe because R reads
    the checkpoint that forward leaves in any case. R waits for the gradient, as trainers do
    that recompute when backward arrives, so it lies on the critical path. With `heads`, heads
    are recovered as well, as where a whole stage is one checkpoint.
    """

    def mode(member: Member, _is_last: bool) -> Member:
        units = tuple(
            replace(u, recoverable=u.recoverable or (heads and u.head)) for u in member.units
        )
        return replace(member, recovery=Recovery.BACKWARD, units=units)

    setup = program.setup.with_members(mode)
    moved = program.with_setup(setup)

    def insert(rank: int, _lane: Lane, actions: Iterable[Action]) -> list[Action]:
        recoverable = _recoverable(moved, rank)
        found: list[Action] = []
        for action in actions:
            kind, stage, unit, micro_batch, step = action
            if kind in _GRADIENT and (stage, unit) in recoverable:
                found.append(Action(Kind.R, stage, unit, micro_batch, step))
            found.append(action)
        return found

    return program.edit("recover-at-backward", Lane.COMPUTE, by=insert, setup=setup)


def recover_forward(program: Program, exempt: Callable[[Member, bool], bool]) -> Program:
    """Forward-side recovery: R leaves the gradient's path and fills the wait before it.

    Moves each R of a micro-batch ahead of that micro-batch's first backward, no further than
    the recovery buffer allows; the rest follow one by one as backwards release the buffer. R no
    longer reads the gradient. Safe because R needs the checkpoint and the view alone, and both
    exist from the micro-batch's forward until its backward. `exempt(member, is_of_last_stage)`
    members keep their activations and lose their R: a last stage, whose backward follows its own
    forward at once, has no wait to fill.
    """

    def mode(member: Member, is_last: bool) -> Member:
        recovery = Recovery.NONE if exempt(member, is_last) else Recovery.FORWARD
        return replace(member, recovery=recovery)

    return _in_modes(program, program.setup.with_members(mode), "recover-forward")


def recover_by_stage(program: Program, modes: tuple[Recovery, ...]) -> Program:
    """Each stage in a recovery mode of its own: what a stage has memory for, it keeps.

    Starts from backward-time recovery everywhere. Takes the Rs of stages that keep theirs away,
    moves those of stages in mode forward as `recover_forward` does, and leaves the others. Safe
    because each stage's activations are its own: no other stage reads them.
    """
    setup = program.setup
    replicas = tuple(
        replace(
            replica,
            stages=tuple(
                replace(stage, members=tuple(replace(m, recovery=mode) for m in stage.members))
                for stage, mode in zip(replica.stages, modes, strict=True)
            ),
        )
        for replica in setup.replicas
    )
    return _in_modes(program, replace(setup, replicas=replicas), "recover-by-stage")


def _in_modes(program: Program, setup: Setup, name: str) -> Program:
    """The program, which recovers at backward time, with each member in the setup's mode."""
    moved = program.with_setup(setup)

    def move(rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterable[Action]:
        mode = {number: member.recovery for number, member in moved.held_by(rank)}
        kept = {number for number, recovery in mode.items() if not recovery.again}
        needed = [a for a in actions if a.kind is not Kind.R or a.stage not in kept]
        if Recovery.FORWARD not in mode.values():
            return needed
        found: list[Action] = []
        for _, group in groupby(needed, key=_backward_block):
            block = list(group)
            if mode[block[0].stage] is Recovery.FORWARD:
                found += _ahead(block, setup.recovery_buffer)
            else:
                found += block
        return found

    return moved.edit(name, Lane.COMPUTE, by=move, setup=setup)


def _backward_block(action: Action) -> tuple[int, int] | int:
    """The (stage, micro-batch) whose backward an action belongs to; forwards stand alone."""
    if action.kind in (Kind.B, Kind.I, Kind.R):
        return action.stage, action.micro_batch
    return -1


def _ahead(block: list[Action], buffer: int) -> list[Action]:
    """One micro-batch's backward with its recoveries first, at most `buffer` of them waiting."""
    recoveries = [action for action in block if action.kind is Kind.R]
    if not recoveries:
        return block
    found = recoveries[:buffer]
    coming = iter(recoveries[buffer:])
    recovered = {action.unit for action in recoveries}
    for action in block:
        if action.kind is Kind.R:
            continue
        found.append(action)
        if action.unit in recovered:
            found.extend(following for following in (next(coming, None),) if following)
    return found


def _recoverable(program: Program, rank: int) -> set[tuple[int, int]]:
    """(stage, unit) of what a rank can recover."""
    return {
        (stage, number)
        for stage, member in program.held_by(rank)
        for number, unit in enumerate(member.units)
        if unit.recoverable
    }
