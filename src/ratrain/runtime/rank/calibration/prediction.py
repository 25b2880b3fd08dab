"""A run's prediction: its program simulated with the times that its ranks measured.

Replicas that the program folds into one are simulated one by one, each with its own times: they
wait for each other at every reduction. What is written is about the program's ranks; the first
replica of each kind stands for all.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.unfolded import Unfolded, unfolded, unfolded_ops
from ratrain.program.verify import Verdict, verify
from ratrain.readers.writing import write_whole
from ratrain.runtime.rank.calibration.drawn_passes import DrawnPasses
from ratrain.runtime.rank.calibration.measured import Calibration
from ratrain.runtime.rank.calibration.run_costs import ElementBytes, costs_of_run
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.seats import Seats
from ratrain.simulate.costs import Costs
from ratrain.simulate.result import RankTimes
from ratrain.simulate.simulate import Simulation, simulate, timeline_of
from ratrain.timeline.timeline import Timeline, write_timeline

DRAWS = 7
"""Simulations of which the one with the median step is the prediction."""
MOST_OPS = 100_000
"""Of a program that is simulated so often, with all of its replicas; a longer one averages by
itself."""


@dataclass(frozen=True)
class Prediction:
    """A simulated step of a program's ranks, and its timeline. `least_s`: what no order of the same
    work takes less than; None for a program that is long or has several steps.
    `steps_s`: each of these steps."""

    step_time_s: float
    steps_s: tuple[float, ...]
    least_s: float | None
    ranks: tuple[RankTimes, ...]
    timeline: Timeline


def write_prediction(
    folder: RunFolder,
    program: Program,
    calibrations: list[Calibration],
    seats: Seats,
    element_bytes: ElementBytes,
    *,
    agrees: bool,
) -> None:
    """Leaves prediction.json and the predicted timeline in the run's folder. The calibrations: by
    world rank."""
    verdict = verify(program)
    prediction = predicted(program, verdict, calibrations, seats, element_bytes, agrees=agrees)
    write_timeline(prediction.timeline, folder.predicted)
    body = {
        "step_time_s": prediction.step_time_s,
        "period_step_times_s": prediction.steps_s,
        "least_s": prediction.least_s,
        "ranks": [_parts(program, times, calibrations) for times in prediction.ranks],
        "bound_bytes": [bound.total_bytes for bound in verdict.bounds],
        "bound_items": [bound.by_family for bound in verdict.bounds],
        "calibration": [asdict(calibration) for calibration in calibrations],
    }
    write_whole(folder.path / "prediction.json", json.dumps(body, indent=1))


def predicted(
    program: Program,
    verdict: Verdict,
    calibrations: list[Calibration],
    seats: Seats,
    element_bytes: ElementBytes,
    *,
    agrees: bool,
) -> Prediction:
    """The `Prediction` of a program with that verdict."""
    short = unfolded_ops(program) <= MOST_OPS
    whole = unfolded(program) if short else Unfolded(program, tuple(range(program.setup.ranks)))
    if whole.program is not program:
        calibrations = [
            replace(calibration, program_rank=rank)
            for calibration, rank in zip(calibrations, _unfolded_ranks(program, seats), strict=True)
        ]
        element_bytes = element_bytes.of_ranks(whole.folded_rank)
    costs = costs_of_run(whole.program, calibrations, element_bytes, agrees=agrees)
    simulation = _typical(whole.program, verdict, costs, calibrations, DRAWS if short else 1)
    bound = simulation.bound if short else None
    return _of_folded(whole, simulation, None if bound is None else bound.time_s)


def _unfolded_ranks(program: Program, seats: Seats) -> list[int]:
    """For each world rank its rank in the unfolded program."""
    first_of_replica: dict[int, int] = {}
    ranks = 0
    for number, replica in enumerate(program.setup.replicas):
        for data, of_class in enumerate(seats.replica_class):
            if of_class == number:
                first_of_replica[data] = ranks
                ranks += replica.ranks
    return [first_of_replica[seat.data] + seat.pipeline for seat in seats.all()]


def _typical(
    program: Program, verdict: Verdict, costs: Costs, calibrations: list[Calibration], draws: int
) -> Simulation:
    """The simulation whose step is the median of several, each with passes drawn anew."""
    drawn = [
        simulate(program, costs, verdict=verdict, vary=DrawnPasses(calibrations, seed))
        for seed in range(draws)
    ]
    return sorted(drawn, key=lambda simulation: simulation.step_time_s)[draws // 2]


def _of_folded(whole: Unfolded, simulation: Simulation, least_s: float | None) -> Prediction:
    """What the ranks of the folded program do: the first of those that each stands for."""
    shown = {rank: folded for folded, rank in whole.first_of_each.items()}
    timeline = timeline_of(simulation)
    return Prediction(
        simulation.step_time_s,
        simulation.window.steps_s,
        least_s,
        tuple(replace(simulation.ranks[rank], rank=folded) for rank, folded in shown.items()),
        replace(
            timeline,
            spans=tuple(
                replace(span, rank=shown[span.rank])
                for span in timeline.spans
                if span.rank in shown
            ),
            memory=tuple(
                replace(curve, rank=shown[curve.rank])
                for curve in timeline.memory
                if curve.rank in shown
            ),
        ),
    )


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
