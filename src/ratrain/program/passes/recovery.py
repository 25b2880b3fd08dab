"""Passes about activations: keep them, or compute them again, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from ratrain.program.columns import KIND, MICRO_BATCH, STAGE, UNIT, Rows, of_kinds
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.replicas import Member, Recovery
from ratrain.program.setup import Setup
from ratrain.program.units import Bools, Ints

_GRADIENT = (Kind.B, Kind.I)


def recover_at_backward(program: Program, *, heads: bool = False) -> Program:
    """Backward-time recovery: a unit's activations are computed again just before its backward.

    Moves nothing; adds one R before each B (or I) of a recoverable unit. Safe because R reads
    the checkpoint that forward leaves in any case. R waits for the gradient, as trainers do
    that recompute when backward arrives, so it is on the critical path. With `heads`, heads
    are recovered as well, as where a whole stage is one checkpoint.
    """

    def mode(member: Member, _is_last: bool) -> Member:
        units = tuple(
            replace(u, recoverable=u.recoverable or (heads and u.head)) for u in member.units
        )
        return replace(member, recovery=Recovery.BACKWARD, units=units)

    setup = program.setup.with_members(mode)
    moved = program.with_setup(setup)

    def insert(rank: int, rows: Rows) -> Rows:
        again = (
            of_kinds(rows, *_GRADIENT) & _recoverable(moved, rank)[rows[:, STAGE], rows[:, UNIT]]
        )
        ahead = np.flatnonzero(again)
        inserted = rows[np.repeat(np.arange(len(rows)), 1 + again)]
        inserted[ahead + np.arange(len(ahead)), KIND] = Kind.R
        return inserted

    return program.edit_rows("recover-at-backward", Lane.COMPUTE, by=insert, setup=setup)


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


def recover_by_stage(program: Program, modes: Sequence[tuple[Recovery, ...]]) -> Program:
    """Each member of each stage in a recovery mode of its own: what it has memory for, it keeps.

    `modes`: of each replica, of its members stage by stage. Starts from backward-time recovery
    everywhere. Takes the Rs of members that keep theirs away, moves those of members in mode
    forward as `recover_forward` does, and leaves the others. Safe because each member's activations
    are its own: nobody else reads them.
    """
    in_turn = chain.from_iterable(modes)
    setup = program.setup.with_members(
        lambda member, _is_last: replace(member, recovery=next(in_turn))
    )
    return _in_modes(program, setup, "recover-by-stage")


def _in_modes(program: Program, setup: Setup, name: str) -> Program:
    """The program, which recovers at backward time, with each member in the setup's mode."""
    moved = program.with_setup(setup)

    def move(rank: int, rows: Rows) -> Rows:
        modes = {number: member.recovery for number, member in moved.held_by(rank)}
        kept = [number for number, mode in modes.items() if not mode.again]
        forward = [number for number, mode in modes.items() if mode is Recovery.FORWARD]
        needed = rows[~(of_kinds(rows, Kind.R) & np.isin(rows[:, STAGE], kept))]
        return _ahead(needed, forward, setup.recovery_buffer) if forward else needed

    return moved.edit_rows(name, Lane.COMPUTE, by=move, setup=setup)


def _ahead(rows: Rows, stages: list[int], buffer: int) -> Rows:
    """Each micro-batch's backward on some stages with its recoveries first, at most `buffer` of
    them waiting: a further one comes behind each backward of a recovered unit."""
    backward = of_kinds(rows, *_GRADIENT, Kind.R) & np.isin(rows[:, STAGE], stages)
    block, start = _blocks(rows, backward)
    recovery = backward & of_kinds(rows, Kind.R)
    unit = block * (int(rows[:, UNIT].max(initial=0)) + 1) + rows[:, UNIT]
    releases = np.flatnonzero(backward & ~recovery & np.isin(unit, unit[recovery]))
    # A row's place: those of the first recoveries are ahead of their block, of the others behind
    # the backward that releases them.
    place = 3 * np.arange(len(rows)) + 1
    at = np.flatnonzero(recovery)
    turn = np.arange(len(at)) - np.searchsorted(at, start[at])
    release = np.searchsorted(releases, start[at]) + turn - buffer
    place[at] = 3 * start[at]
    later = turn >= buffer
    place[at[later]] = 3 * releases[release[later]] + 2
    return rows[np.argsort(place, kind="stable")]


def _blocks(rows: Rows, backward: Bools) -> tuple[Ints, Ints]:
    """For each row the number of its block, and where the block starts: the backward of a
    micro-batch on a stage, or what stands between two."""
    changes = np.ones(len(rows), bool)
    changes[1:] = backward[1:] != backward[:-1]
    for column in (STAGE, MICRO_BATCH):
        changes[1:] |= backward[1:] & (rows[1:, column] != rows[:-1, column])
    block = np.cumsum(changes) - 1
    return block, np.flatnonzero(changes)[block]


def _recoverable(program: Program, rank: int) -> Bools:
    """Stages x units: what a rank can recover."""
    held = program.held_by(rank)
    most = max(len(member.units) for _, member in held)
    table = np.zeros((held[-1][0] + 1, most), bool)
    for stage, member in held:
        table[stage, : len(member.units)] = [unit.recoverable for unit in member.units]
    return table
