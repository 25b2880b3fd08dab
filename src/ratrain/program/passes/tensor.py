"""Pass about tensor parallelism: the sums inside a layer, made visible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program

_SUM_OF = {
    Kind.F: Kind.AllReduce_F,
    Kind.R: Kind.AllReduce_R,
    Kind.B: Kind.AllReduce_B,
    Kind.I: Kind.AllReduce_B,
}


def tensor_collectives(program: Program) -> Program:
    """Tensor-parallel collectives: each unit's sums over its tensor group, as ops of their own.

    Adds an AllReduce after each F and R of a unit that hands something on, and after each B (or
    I) of a unit that hands a gradient back, on every member of several ranks; the op carries all
    sums of the unit. The next unit reads the sum, not the partial result, so the collective is
    on the critical path, as it does on the machine. Shoeybi et al. 2019, arXiv 1909.08053.
    """
    setup = program.setup
    if setup.tensor == 1:
        return program

    def sums(rank: int, _lane: Lane, _actions: Iterable[Action]) -> Iterator[Action]:
        held = dict(program.held_by(rank))
        last_stage = len(setup.replicas[setup.replica_of(rank)].stages) - 1
        for action in program.lane(rank, Lane.COMPUTE):
            word = _SUM_OF.get(action.kind)
            if word is None or held[action.stage].tensor == 1:
                continue
            first = action.stage == 0 and action.unit == 0
            last = action.stage == last_stage and action.unit == len(held[action.stage].units) - 1
            ends = first if word is Kind.AllReduce_B else last and word is Kind.AllReduce_F
            if not ends:
                yield action._replace(kind=word)

    return program.edit("tensor-collectives", Lane.TENSOR, by=sums)
