"""Pass about partial synchronisation: replicas that meet once in several steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from ratrain.errors import ProgramError
from ratrain.program.actions import Action
from ratrain.program.columns import STEP, Rows
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program


def average_weights(program: Program, steps: int) -> Program:
    """Parameter averaging: replicas train alone, and average their weights once in `steps` steps.

    The program spells out that many steps. Takes every reduction away and adds one AverageW a unit
    behind its update of the last step, in the order of updates. It changes what training means
    (local SGD, Stich 2019, arXiv 1805.09767), and says so by its name. The optimizer's moments are
    averaged too, so that after a period all replicas are alike and one of them can be saved for
    all. Copies of a tied matrix still add up their gradients, each replica's alone, in every step:
    ahead of all averages, since updates may wait for that sum. Safe because an average reads
    updated weights, and the next step's forward reads the average.
    """
    if program.setup.sharding:
        raise ProgramError(
            "weights that replicas average belong to each of them whole", fix="use sharding 0"
        )
    setup = replace(program.setup, period=steps, averages=True)
    shared = program.setup.holders

    def averages(rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        held = dict(program.held_by(rank))
        ties = [action for action in actions if action.kind is Kind.TieSync]
        for step in range(steps):
            yield from (tie._replace(step=step) for tie in ties)
        for action in program.lane(rank, Lane.UPDATE):
            if action.kind is not Kind.UpdateShard:
                continue
            if shared[held[action.stage].units[action.unit].name] > 1:
                yield action._replace(kind=Kind.AverageW, step=steps - 1)

    def every_step(_rank: int, rows: Rows) -> Rows:
        spelled_out = np.tile(rows, (steps, 1))
        spelled_out[:, STEP] = np.repeat(np.arange(steps), len(rows))
        return spelled_out

    averaging = program.edit(f"average-weights-{steps}", Lane.REDUCE, by=averages, setup=setup)
    for lane in Lane:
        if lane is not Lane.REDUCE:
            averaging = averaging.edit_rows("", lane, by=every_step)
    return averaging
