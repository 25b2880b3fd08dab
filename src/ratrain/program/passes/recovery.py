"""Passes about activations: keep them, or compute them again, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from ratrain.program.actions import Action, Kind, Lane
from ratrain.program.program import Program
from ratrain.program.setup import Recovery, Stage

_GRADIENT = (Kind.B, Kind.I)


def recover_at_backward(program: Program, *, heads: bool = False) -> Program:
    """Backward-time recovery: a unit's activations are computed again just before its backward.

    Moves nothing; adds one R before each B (or I) of a recoverable unit. Safe because R reads
    the checkpoint that forward leaves in any case. R waits for the gradient, as trainers do
    that recompute when backward arrives, so it lies on the critical path. With `heads`, heads
    are recovered as well, as where a whole stage is one checkpoint.
    """

    def mode(stage: Stage, _is_last: bool) -> Stage:
        units = tuple(
            replace(u, recoverable=u.recoverable or (heads and u.head)) for u in stage.units
        )
        return replace(stage, recovery=Recovery.BACKWARD, units=units)

    setup = program.setup.with_stages(mode)
    recoverable = _recoverable(program.with_setup(setup))

    def insert(_rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        for action in actions:
            if action.kind in _GRADIENT and recoverable(_rank, action):
                yield action._replace(kind=Kind.R)
            yield action

    return program.edit("recover-at-backward", Lane.COMPUTE, by=insert, setup=setup)


def recover_forward(program: Program, exempt: Callable[[Stage, bool], bool]) -> Program:
    """Forward-side recovery: R leaves the gradient's path and fills the wait before it.

    Moves each R of a micro-batch ahead of that micro-batch's first backward, no further than
    the recovery buffer allows; the rest follow one by one as backwards release the buffer. R no
    longer reads the gradient. Safe because R needs the checkpoint and the view alone, and both
    exist from the micro-batch's forward until its backward. `exempt(stage, is_last)` stages
    keep their activations and lose their R: a last stage, whose backward follows its own
    forward at once, has no wait to fill.
    """

    def mode(stage: Stage, is_last: bool) -> Recovery:
        return Recovery.NONE if exempt(stage, is_last) else Recovery.FORWARD

    modes = tuple(
        tuple(
            mode(stage, number == len(replica.stages) - 1)
            for number, stage in enumerate(replica.stages)
        )
        for replica in program.setup.replicas
    )
    return _in_modes(program, modes, "recover-forward")


def recover_by_stage(program: Program, modes: tuple[Recovery, ...]) -> Program:
    """Each stage in a recovery mode of its own: what a stage has memory for, it keeps.

    Starts from backward-time recovery everywhere. Takes the Rs of stages that keep theirs away,
    moves those of stages in mode forward as `recover_forward` does, and leaves the others. Safe
    because each stage's activations are its own: no other stage reads them.
    """
    return _in_modes(program, (modes,) * len(program.setup.replicas), "recover-by-stage")


def _in_modes(program: Program, modes: tuple[tuple[Recovery, ...], ...], name: str) -> Program:
    replicas = tuple(
        replace(
            replica,
            stages=tuple(
                replace(stage, recovery=mode)
                for stage, mode in zip(replica.stages, own, strict=True)
            ),
        )
        for replica, own in zip(program.setup.replicas, modes, strict=True)
    )
    setup = replace(program.setup, replicas=replicas)
    moved = program.with_setup(setup)

    def move(rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        mode = {number: stage.recovery for number, stage in moved.stages_of(rank)}
        needed = [a for a in actions if a.kind is not Kind.R or mode[a.stage].again]
        for _, group in groupby(needed, key=_backward_block):
            block = list(group)
            if mode[block[0].stage] is Recovery.FORWARD:
                yield from _ahead(block, setup.recovery_buffer)
            else:
                yield from block

    return moved.edit(name, Lane.COMPUTE, by=move, setup=setup)


def _backward_block(action: Action) -> tuple[int, int] | int:
    """The (stage, micro-batch) whose backward an action belongs to; forwards stand alone."""
    if action.kind in (Kind.B, Kind.I, Kind.R):
        return action.stage, action.micro_batch
    return -1


def _ahead(block: list[Action], buffer: int) -> Iterator[Action]:
    """One micro-batch's backward with its recoveries first, at most `buffer` of them waiting."""
    recoveries = [action for action in block if action.kind is Kind.R]
    if not recoveries:
        yield from block
        return
    yield from recoveries[:buffer]
    coming = iter(recoveries[buffer:])
    recovered = {action.unit for action in recoveries}
    for action in block:
        if action.kind is Kind.R:
            continue
        yield action
        if action.unit in recovered:
            yield from (following for following in (next(coming, None),) if following)


def _recoverable(program: Program) -> Callable[[int, Action], bool]:
    stages = {rank: dict(program.stages_of(rank)) for rank in range(program.setup.ranks)}
    return lambda rank, action: stages[rank][action.stage].units[action.unit].recoverable
