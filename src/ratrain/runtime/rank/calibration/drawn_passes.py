"""Compute ops that take as long as those that were timed, not all as long as their mean.

Under a quota, or beside other work, an op runs through or is cut by a pause. Ranks that wait for
each other wait for the slower one, so a pipeline takes longer than its mean times say. Each
micro-batch's way through a rank, forward and backward, therefore takes as long as one of the passes
that were timed there, drawn at random, with all units of that pass.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ratrain.program.kind import Kind, Lane
from ratrain.program.table import Table
from ratrain.runtime.rank.calibration.measured import Calibration
from ratrain.simulate.costs import Floats, OpCosts

_KINDS = ((Kind.F, Kind.R), (Kind.B, Kind.I, Kind.W))
"""What goes forward, and what goes back."""


class DrawnPasses:
    """Turns mean costs of compute ops into those of drawn passes; the same for the same seed."""

    def __init__(self, calibrations: list[Calibration], seed: int) -> None:
        self._calibrations, self._seed = calibrations, seed

    def __call__(self, table: Table, costs: OpCosts) -> OpCosts:
        random = np.random.default_rng(self._seed)
        fixed_s, units = costs.fixed_s.copy(), table.states.units
        for rank in range(int(units.rank.max()) + 1):
            held = np.flatnonzero(units.rank == rank)
            computes = (table.rank == rank) & (table.lane == Lane.COMPUTE)
            for back, kinds in enumerate(_KINDS):
                ratios = self._ratios(rank, back)
                ops = np.flatnonzero(computes & np.isin(table.kind, kinds))
                if not len(ratios) or not len(ops):
                    continue
                micro_batch = table.micro_batch[ops]
                drawn = random.integers(len(ratios), size=int(micro_batch.max()) + 1)
                place = np.searchsorted(held, table.unit[ops])
                fixed_s[ops] *= ratios[drawn[micro_batch], place]
        return replace(costs, fixed_s=fixed_s)

    def _ratios(self, rank: int, back: int) -> Floats:
        """Passes x units: what each took over the mean, on all that play the program's rank."""
        passes = [
            np.array([unit.passes for unit in calibration.units])[:, :, back].T
            for calibration in self._calibrations
            if calibration.program_rank == rank and all(unit.passes for unit in calibration.units)
        ]
        if not passes:
            return np.zeros((0, 0))
        means = [np.maximum(times.mean(axis=0), 1e-12) for times in passes]
        return np.concatenate([times / mean for times, mean in zip(passes, means, strict=True)])
