"""A run's prediction: its program simulated with the times that its ranks measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from statistics import fmean
from typing import Any

from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.verify import verify
from ratrain.readers.writing import write_whole
from ratrain.runtime.rank.calibration import Calibration
from ratrain.runtime.rank.drawn_passes import DrawnPasses
from ratrain.runtime.rank.run_costs import ElementBytes, costs_of_run
from ratrain.runtime.run_folder import RunFolder
from ratrain.simulate.costs import Costs
from ratrain.simulate.result import RankTimes
from ratrain.simulate.simulate import Simulation, simulate, timeline_of
from ratrain.timeline.timeline import write_timeline

DRAWS = 7
"""Simulations of which the one with the median step is the prediction."""
MOST_OPS = 100_000
"""Of a program that is simulated so often; a longer one averages by itself."""


def write_prediction(
    folder: RunFolder,
    program: Program,
    calibrations: list[Calibration],
    element_bytes: ElementBytes,
    *,
    agrees: bool,
) -> None:
    """Leaves prediction.json and the predicted timeline in the run's folder."""
    costs = costs_of_run(program, calibrations, element_bytes, agrees=agrees)
    simulation = _typical(program, costs, calibrations)
    write_timeline(timeline_of(simulation), folder.predicted)
    bounds = simulation.verdict.bounds
    body = {
        "step_time_s": simulation.step_time_s,
        "ranks": [_parts(program, times, calibrations) for times in simulation.ranks],
        "bound_bytes": [bound.total_bytes for bound in bounds],
        "bound_items": [bound.by_family for bound in bounds],
        "calibration": [asdict(calibration) for calibration in calibrations],
    }
    write_whole(folder.path / "prediction.json", json.dumps(body, indent=1))


def _typical(program: Program, costs: Costs, calibrations: list[Calibration]) -> Simulation:
    """The simulation whose step is the median of several, each with passes drawn anew."""
    verdict = verify(program)
    draws = DRAWS if len(program.table) <= MOST_OPS else 1
    drawn = [
        simulate(program, costs, verdict=verdict, vary=DrawnPasses(calibrations, seed))
        for seed in range(draws)
    ]
    return sorted(drawn, key=lambda simulation: simulation.step_time_s)[draws // 2]


def _parts(program: Program, times: RankTimes, calibrations: list[Calibration]) -> dict[str, Any]:
    """Where a rank's step goes. What passes between ops, which the simulator counts as theirs, is
    in none of the parts, as in what is measured."""
    between_s = fmean(c.between_s for c in calibrations if c.program_rank == times.rank)
    table, period = program.table, program.setup.period
    computes = (table.rank == times.rank) & (table.lane == Lane.COMPUTE)
    recoveries = int((computes & (table.kind == Kind.R)).sum())
    others = sum(
        int((computes & (table.kind == kind)).sum()) for kind in (Kind.F, Kind.B, Kind.I, Kind.W)
    )
    return {
        "rank": times.rank,
        "compute_s": max(times.compute_s - others * between_s / period, 0.0),
        "recovery_s": max(times.recovery_s - recoveries * between_s / period, 0.0),
        "driving_s": times.driving_s,
        "waiting_s": {kind.value: s for kind, s in times.waiting_s.items()},
    }
