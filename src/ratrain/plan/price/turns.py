"""Turns that hide averages behind backward: DreamDDP's division of its order, by a plan's costs."""

from __future__ import annotations

import numpy as np

from ratrain.cost.turns import exposed_of_runs, turns
from ratrain.plan.layout.turns import Turns, slowest, turns_by_rank
from ratrain.program.kind import Kind
from ratrain.program.setup import Setup
from ratrain.program.units import unit_columns
from ratrain.simulate.costs import NO_LINK, Costs, Floats


def hidden_turns(setup: Setup, costs: Costs, steps: int, *, tied: bool) -> Turns:
    """The division whose averages, each behind its unit's last backward, are exposed least. Where
    replicas differ the slowest counts."""
    computed = _seconds(costs, Kind.B) + _seconds(costs, Kind.R) * unit_columns(setup).recovered
    if setup.split_backward:
        computed = _seconds(costs, Kind.I) + _seconds(costs, Kind.W)
    backward_s = slowest(setup, computed)
    sync_s = slowest(setup, _seconds(costs, Kind.AverageW))

    def of_rank(names: list[str]) -> tuple[int, ...]:
        b, c = (np.array([column[name] for name in names]) for column in (backward_s, sync_s))
        return turns(exposed_of_runs(b, c), steps)

    return turns_by_rank(setup, of_rank, tied=tied)


def _seconds(costs: Costs, kind: Kind) -> Floats:
    """What an op of a kind takes alone, for each unit."""
    work = costs.work[kind]
    rate = costs.link_rate_bytes_per_s[np.maximum(work.link, 0)]
    return work.fixed_s + np.where(work.link == NO_LINK, 0.0, work.volume_bytes / rate)
