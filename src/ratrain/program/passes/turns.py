"""Passes about turns: of reductions and gathers as an order out of a file says, of all network ops
of a rank for a network that needs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ratrain.errors import ProgramError
from ratrain.program.actions import NONE, Action
from ratrain.program.kind import Lane
from ratrain.program.plain import Transfer
from ratrain.program.program import Program

TURNS = "transfers-in-turn"
IN_TURN = "network-in-turn"


def transfers_in_turn(
    program: Program, turns: Mapping[tuple[int, Lane], Sequence[Transfer]]
) -> Program:
    """Lanes of reductions and gathers, by their place in the pipeline, in a given order.

    Safe because which gradient is complete and which update is done before an op says its states,
    not its turn. All replicas take the same turns, so members of a collective meet in one order; a
    turn that waits for one behind it is found by the proof.
    """
    lanes = sorted({lane for _, lane in turns})

    def in_turn(rank: int, lane: Lane, actions: Iterable[Action]) -> list[Action]:
        setup = program.setup
        place = rank - setup.first_rank[setup.replica_of(rank)]
        asked = turns.get((place, lane))
        present = list(actions)
        if asked is None or not present:
            return present
        wanted = [Action(kind, stage, unit, NONE) for kind, stage, unit in asked]
        if sorted(wanted) != sorted(present):
            raise ProgramError(
                f"the order's {lane.word} lane of rank {place} has other ops than the job's",
                place="[schedule] skeleton",
                fix="use the order with the passes and the layout that it was made for",
            )
        return wanted

    return program.edit(TURNS, *lanes, by=in_turn)


def network_in_turn(program: Program) -> Program:
    """A rank's network ops one after the other, in one order of all ranks (`network_turns`).

    Safe because the order is one in which the program can run: no op waits for one behind it.
    """
    setup = replace(program.setup, network_in_turn=True)
    return replace(program, setup=setup, passes=(*program.passes, IN_TURN))
