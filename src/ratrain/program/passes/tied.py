"""Pass about tied embeddings: one matrix, of which the first and the last stage hold a copy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ratrain.errors import ProgramError
from ratrain.program.actions import NONE, Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program

_Unit = tuple[int, int]
"""(stage, unit in stage)"""


def tie_embeddings(program: Program) -> Program:
    """Tied embeddings: the gradients of both copies are added up before any update reads them.

    Adds a TieSync after the last GradSync of the rank with the embedding, and one on the rank with
    the head, at the same moment; where one rank holds both copies, one op adds both gradients. It
    comes after the reduction over replicas so that the owner of a part exchanges that part alone:
    with d owners a d-th of the bytes. The embedding's gradient is the last of all, so the head's
    update and save move to the end of their lanes: they hold no layer up, and meet other ranks in
    one order everywhere. Safe because a TieSync reads reduced gradients only, and what reads the
    sum waits for it. Both copies then see the same gradient, and the same update keeps them equal
    bit by bit. Megatron-LM does the same with an all-reduce over both stages (arXiv 1909.08053).
    """
    if program.setup.per_micro_batch:
        raise ProgramError(
            "adding the gradients of tied copies takes whole gradients, which sharded accumulation "
            "does not keep",
            fix="use local accumulation",
        )
    setup = replace(program.setup, tied=True)

    def tied(rank: int, lane: Lane, actions: Iterable[Action]) -> list[Action]:
        ends = ends_of(program, rank)
        if lane is not Lane.REDUCE:
            return sorted(actions, key=lambda action: _concerns(action, ends[1]))
        held = [end for end in ends if end[0] in dict(program.held_by(rank))]
        return [*actions, *(Action(Kind.TieSync, *end, NONE) for end in held[:1])]

    lanes = (Lane.REDUCE, Lane.UPDATE, Lane.DISK)
    return program.edit("tie-embeddings", *lanes, by=tied, setup=setup)


def ends_of(program: Program, rank: int) -> tuple[_Unit, _Unit]:
    """The first and the last unit of a rank's replica."""
    stages = program.setup.replicas[program.setup.replica_of(rank)].stages
    return (0, 0), (len(stages) - 1, len(stages[-1].names) - 1)


def _concerns(action: Action, unit: _Unit) -> bool:
    """Whether an op updates or saves a unit."""
    moved = action.kind in (Kind.UpdateShard, Kind.Save)
    return moved and (action.stage, action.unit) == unit
