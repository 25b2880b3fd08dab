"""Pass about tensor parallelism: the sums inside a layer, made visible."""

from __future__ import annotations

import numpy as np

from ratrain.program.actions import NONE
from ratrain.program.columns import KIND, STAGE, UNIT, Rows, as_columns
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.units import Bools

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
    lanes = as_columns(program.lanes)

    def sums(rank: int, _rows: Rows) -> Rows:
        rows = lanes.rows_of((rank, Lane.COMPUTE))
        last_stage = len(setup.replicas[setup.replica_of(rank)].stages) - 1
        summed, last_unit = np.zeros((2, last_stage + 1), dtype=np.int32)
        for stage, member in program.held_by(rank):
            summed[stage], last_unit[stage] = member.tensor > 1, len(member.units) - 1
        stages, units = rows[:, STAGE], rows[:, UNIT]
        words: Rows = np.full(len(rows), NONE, dtype=np.int32)
        for kind, word in _SUM_OF.items():
            words[rows[:, KIND] == kind] = word
        first: Bools = (stages == 0) & (units == 0)
        last: Bools = (stages == last_stage) & (units == last_unit[stages])
        backward: Bools = words == Kind.AllReduce_B
        ends: Bools = (backward & first) | ((words == Kind.AllReduce_F) & last)
        chosen: Bools = (words != NONE) & (summed[stages] > 0) & ~ends
        made = rows[chosen].copy()
        made[:, KIND] = words[chosen]
        return made

    return program.edit_rows("tensor-collectives", Lane.TENSOR, by=sums)
