"""Pass about memory tiers: what waits for backward waits in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.replicas import Member


def offload_inputs(program: Program) -> Program:
    """Input offload: the inputs of units that are recovered wait for backward in host memory.

    Adds an OffloadInput behind each forward of such a unit, on a lane of its own, and a FetchInput
    ahead of its recovery, on another. Inputs are made in two slots and come back into a few, so
    what the device holds no longer grows with the micro-batches in flight, nor with how far lanes
    drift apart. Safe because recovery and backward read what was fetched, and a slot is taken over
    only after its readers. Units that keep their activations keep their inputs too.
    """

    def offloading(member: Member, _is_last: bool) -> Member:
        return replace(member, offloads=member.recovery.again)

    setup = program.setup.with_members(offloading)

    def copies(rank: int, lane: Lane, _actions: Iterable[Action]) -> Iterator[Action]:
        away = _units_with_input_away(program.with_setup(setup), rank)
        word = Kind.OffloadInput if lane is Lane.OFFLOAD else Kind.FetchInput
        first_use = (Kind.F,) if lane is Lane.OFFLOAD else (Kind.R,)
        for action in program.lane(rank, Lane.COMPUTE):
            if action.kind in first_use and (action.stage, action.unit) in away:
                yield action._replace(kind=word)

    return program.edit("offload-inputs", Lane.OFFLOAD, Lane.FETCH, by=copies, setup=setup)


def _units_with_input_away(program: Program, rank: int) -> set[tuple[int, int]]:
    """(stage, unit) of a rank's units whose inputs wait in host memory."""
    return {
        (stage, number)
        for stage, member in program.held_by(rank)
        for number, unit in enumerate(member.units)
        if member.offloads and unit.recoverable and (stage, number) != (0, 0)
    }
