"""Compute ops whose times are drawn from those of timed passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from launched import made
from runs_made import Setting

from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.runtime.rank.calibration.drawn_passes import DrawnPasses
from ratrain.runtime.rank.calibration.measured import Calibration, UnitTimes
from ratrain.runtime.rank.calibration.run_costs import ElementBytes, costs_of_run
from ratrain.runtime.step.schedule import schedule_of
from ratrain.simulate.costs import OpCosts, costs_of_ops
from ratrain.simulate.simulate import simulate

FORWARD_S, BACK_S = 1.0, 2.0
STEADY = ((FORWARD_S, BACK_S),) * 3
PAUSED = ((0.5, 1.0), (0.5, 1.0), (2.0, 4.0))
"""Passes of which one is cut by a pause; the mean is the same."""


@pytest.fixture(scope="module", params=["1f1b", "zb-h1"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    setting = Setting(request.param, pipeline=2, recovery="keep-all")
    return made(tmp_path_factory.mktemp("two"), setting).read_program()


def told(program: Program, passes: tuple[tuple[float, float], ...]) -> list[Calibration]:
    half_s = BACK_S / 2
    unit = UnitTimes(FORWARD_S, FORWARD_S, BACK_S, half_s, half_s, 0.0, 0.0, 64, 64, 0, passes)
    counts = [len(schedule_of(program, rank).units) for rank in range(2)]
    return [
        Calibration(rank, (unit,) * count, None, None, None, None, None, 0.0, 0.0)
        for rank, count in enumerate(counts)
    ]


def mean_costs(program: Program) -> OpCosts:
    return costs_of_ops(
        program.table, costs_of_run(program, told(program, STEADY), ElementBytes((4,), 4, 4))
    )


def test_passes_that_all_take_as_long_change_nothing(program: Program) -> None:
    costs = mean_costs(program)
    drawn = DrawnPasses(told(program, STEADY), seed=1)(program.table, costs)
    assert (drawn.fixed_s == costs.fixed_s).all()


def test_without_timed_passes_means_stay(program: Program) -> None:
    costs = mean_costs(program)
    drawn = DrawnPasses(told(program, ()), seed=1)(program.table, costs)
    assert (drawn.fixed_s == costs.fixed_s).all()


def test_each_compute_op_takes_as_long_as_in_a_timed_pass_and_nothing_else_changes(
    program: Program,
) -> None:
    table, costs = program.table, mean_costs(program)
    drawn = DrawnPasses(told(program, PAUSED), seed=1)(table, costs)
    computes = (table.lane == Lane.COMPUTE) & (costs.fixed_s > 0)
    ratios = drawn.fixed_s[computes] / costs.fixed_s[computes]
    assert set(np.round(ratios, 9)) == {0.5, 2.0}
    assert (drawn.fixed_s[~computes] == costs.fixed_s[~computes]).all()
    assert replace(drawn, fixed_s=costs.fixed_s) == replace(costs, fixed_s=costs.fixed_s)


def test_a_micro_batch_goes_through_a_rank_in_one_pass(program: Program) -> None:
    table, costs = program.table, mean_costs(program)
    drawn = DrawnPasses(told(program, PAUSED), seed=2)(table, costs)
    for rank in range(2):
        forward = np.flatnonzero((table.kind == Kind.F) & (table.rank == rank))
        for micro_batch in set(table.micro_batch[forward].tolist()):
            ops = forward[table.micro_batch[forward] == micro_batch]
            assert len(set(drawn.fixed_s[ops].tolist())) == 1


def test_the_same_seed_draws_the_same_passes_and_another_one_others(program: Program) -> None:
    costs, told_paused = mean_costs(program), told(program, PAUSED)
    first, again, other = (
        DrawnPasses(told_paused, seed)(program.table, costs).fixed_s for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_ranks_that_wait_for_each_other_lose_time_by_pauses(program: Program) -> None:
    costs = costs_of_run(program, told(program, STEADY), ElementBytes((4,), 4, 4))
    steady_s = simulate(program, costs).step_time_s
    paused_s = [
        simulate(program, costs, vary=DrawnPasses(told(program, PAUSED), seed)).step_time_s
        for seed in range(9)
    ]
    assert sorted(paused_s)[4] > steady_s
