"""How fast the ops of a program that repeats itself fall behind, repetition by repetition.

Ranks of unequal speed drift apart until the faster one must wait for the slower. Until then a step
may grow by the same with every repetition, and afterwards by more: whatever falls behind fastest
sets the pace in the end. So a line through a few short programs holds for a long one only if the
step already grows as fast as the slowest op of the middle does.
"""

from __future__ import annotations

import numpy as np

from ratrain.program.kind import Lane
from ratrain.program.repeating import Repeating
from ratrain.program.table import Table
from ratrain.simulate.costs import Floats
from ratrain.simulate.engine import Run


def slowest_pace_s(base: Repeating, times: int, depth: int, table: Table, run: Run) -> float:
    """In the last step of a run of `base.written_out(times)`: the longest time between an op of the
    middle and the same op a repetition later, each op's mean over the last rounds of the pipeline,
    of `depth` repetitions each, and over half of all at most."""
    rounds = max(1, times // 2 // depth)
    apart = min(rounds * depth, times)
    if not apart:
        return float("inf")
    paces = [
        float((starts[-1] - starts[-1 - apart]).max()) / apart
        for starts in _starts(base, times, table, run)
    ]
    return max(paces, default=0.0)


def _starts(base: Repeating, times: int, table: Table, run: Run) -> list[Floats]:
    """For each lane with a middle, when its ops began: a row for each repetition."""
    started_s = run.start_s[(run.periods - 1) * len(table) :]
    lanes = table.rank * len(Lane) + table.lane
    starts: list[Floats] = []
    for (rank, lane), middle in base.middles.items():
        if len(middle):
            begin = int(np.searchsorted(lanes, rank * len(Lane) + lane)) + middle.begin
            end = begin + (times + 1) * len(middle)
            starts.append(started_s[begin:end].reshape(times + 1, len(middle)))
    return starts
