"""Pass about tensor parallelism: the sums inside a layer, made visible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ratrain.program.actions import Action, Kind, Lane
from ratrain.program.program import Program

_SUM_OF = {
    Kind.F: Kind.AllReduce_F,
    Kind.R: Kind.AllReduce_R,
    Kind.B: Kind.AllReduce_B,
    Kind.I: Kind.AllReduce_B,
}


def tensor_collectives(program: Program, degree: int) -> Program:
    """Tensor-parallel collectives: each unit's sums over its tensor group, as ops of their own.

    Adds an AllReduce after each F and R of a unit that hands something on, and after each B (or
    I) of a unit that hands a gradient back; the op carries all sums of the unit. The next unit
    reads the sum, not the partial result, so the collective lies on the critical path, as it
    does on the machine. Shoeybi et al. 2019, arXiv 1909.08053.
    """
    setup = replace(program.setup, tensor=degree)
    if degree == 1:
        return program.with_setup(setup)

    def sums(rank: int, _lane: Lane, _actions: Iterable[Action]) -> Iterator[Action]:
        stages = dict(program.stages_of(rank))
        last_stage = len(setup.replicas[setup.replica_of(rank)].stages) - 1
        for action in program.lane(rank, Lane.COMPUTE):
            word = _SUM_OF.get(action.kind)
            if word is None:
                continue
            first = action.stage == 0 and action.unit == 0
            last = action.stage == last_stage and action.unit == len(stages[action.stage].units) - 1
            ends = first if word is Kind.AllReduce_B else last and word is Kind.AllReduce_F
            if not ends:
                yield action._replace(kind=word)

    return program.edit("tensor-collectives", Lane.TENSOR, by=sums, setup=setup)
