"""What comes out of a simulation: it adds up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from costs_made import plain_costs, random_costs
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from made import Case, cases, replica, small

from ratrain.describe.units import format_bytes
from ratrain.program.actions import Kind
from ratrain.program.kind import Waiting
from ratrain.program.setup import Setup
from ratrain.program.skeletons import build
from ratrain.program.strategies import STRATEGIES
from ratrain.simulate.memory import memory_curves
from ratrain.simulate.result import RankTimes
from ratrain.simulate.simulate import Simulation, simulate, timeline_of
from ratrain.simulate.summary import as_json, as_text

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32 - 1)
STEPS = 8


def simulated(case: Case, seed: int, steps: int = STEPS) -> Simulation:
    """The simulation of a random case with random costs."""
    return simulate(case.program, random_costs(case.program.table, seed), steps=steps)


def parts_s(times: RankTimes) -> float:
    """All of a rank's time, summed."""
    waiting_s = sum(times.waiting_s.values())
    return times.compute_s + times.recovery_s + times.driving_s + waiting_s


def repeats(simulation: Simulation) -> bool:
    """Whether the last two steps are copies of each other, shifted by the step time."""
    n, run = len(simulation.program.table), simulation.run
    last, before = run.end_s[-n:], run.end_s[-2 * n : -n]
    return bool(np.allclose(last - before, simulation.step_time_s, rtol=1e-12, atol=1e-12))


@quick
@given(cases(), seeds)
def test_the_times_of_a_rank_add_up_to_the_step_time(case: Case, seed: int) -> None:
    simulation = simulated(case, seed)
    assume(repeats(simulation))
    assert simulation.window.steady
    for times in simulation.ranks:
        assert parts_s(times) == pytest.approx(simulation.step_time_s, rel=1e-9)
        assert all(time_s >= 0 for time_s in times.waiting_s.values())
        assert times.compute_s >= 0
        assert times.recovery_s >= 0
        assert times.driving_s >= -1e-9


@quick
@given(cases(), seeds)
def test_the_critical_path_takes_the_step_time(case: Case, seed: int) -> None:
    simulation = simulated(case, seed)
    assert sum(part.time_s for part in simulation.critical) == pytest.approx(
        simulation.step_time_s, rel=1e-9
    )
    assert all(part.time_s >= 0 and part.ops > 0 for part in simulation.critical)


@quick
@given(cases(), seeds)
def test_the_items_of_a_peak_add_up_to_it(case: Case, seed: int) -> None:
    for times in simulated(case, seed).ranks:
        assert sum(times.peak_items.values()) == times.peak_bytes


@quick
@given(cases(), seeds)
def test_the_memory_curve_peaks_at_the_peak_and_ends_where_it_began(case: Case, seed: int) -> None:
    simulation = simulated(case, seed, steps=2)
    table = simulation.program.table
    curves = memory_curves(table, simulation.run, first_period=0, origin_s=0.0)
    for rank, (time_s, size_bytes) in enumerate(curves):
        assert max(size_bytes) == simulation.run.peak_bytes[rank]
        assert size_bytes[0] == size_bytes[-1]
        assert list(time_s) == sorted(time_s)
        assert min(size_bytes) >= 0


@settings(quick, max_examples=20)
@given(cases(), seeds)
def test_compute_time_is_the_sum_of_the_ops_and_changes_with_no_schedule(
    case: Case, seed: int
) -> None:
    table = case.program.table
    costs = random_costs(table, seed)
    for times in simulate(case.program, costs, steps=2).ranks:
        ops = np.flatnonzero(table.rank == times.rank)
        spent = {
            kind: sum(costs.work[kind].fixed_s[g] for g in table.unit[ops[table.kind[ops] == kind]])
            for kind in (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
        }
        assert times.recovery_s == pytest.approx(spent.pop(Kind.R))
        assert times.compute_s == pytest.approx(sum(spent.values()))


# ---- by hand ----------------------------------------------------------------------------


def test_the_bubble_of_1f1b_is_the_textbook_one() -> None:
    """(P - 1) / (M + P - 1), where messages and state work take no time."""
    for ranks, micro_batches in ((2, 4), (4, 4), (4, 16)):
        program = build("1f1b", Setup((replica((1,) * ranks, micro_batches),)))
        costs = plain_costs(program.table, {Kind.F: 1.0, Kind.B: 2.0})
        simulation = simulate(program, costs)
        assert simulation.step_time_s == 3.0 * (micro_batches + ranks - 1)
        expected = (ranks - 1) / (micro_batches + ranks - 1)
        assert simulation.bubble_fraction == pytest.approx(expected)
        assert simulation.tail_s == 0.0
        assert set(simulation.exposed_s.values()) == {0.0}


def test_the_tail_of_plain_1f1b_is_its_reductions_and_updates() -> None:
    program = small("tuned", cut=(2, 2))
    costs = plain_costs(
        program.table,
        {Kind.F: 1.0, Kind.B: 2.0, Kind.GradSync: 0.5, Kind.UpdateShard: 0.25, Kind.PrefetchW: 0.1},
    )
    simulation = simulate(program, costs)
    units = len(program.held_by(0)[0][1].units)
    assert simulation.ranks[0].tail_s == pytest.approx(units * 0.85)
    waiting = simulation.ranks[0].waiting_s
    assert waiting[Waiting.REDUCE] == pytest.approx(units * 0.5)
    assert waiting[Waiting.UPDATE] == pytest.approx(units * 0.25)
    assert waiting[Waiting.GATHER] == pytest.approx(units * 0.1)


def test_update_prefetch_and_the_state_pipeline_shorten_the_step_and_its_tail() -> None:
    times_s = {Kind.F: 1.0, Kind.R: 1.0, Kind.B: 2.0}
    state_s = dict.fromkeys([Kind.GradSync, Kind.UpdateShard, Kind.PrefetchW], 0.5)
    steps = {}
    for name in ("tuned", "backward-checkpoint"):
        program = small(name, cut=(3, 3))
        steps[name] = simulate(program, plain_costs(program.table, {**times_s, **state_s}))
    assert steps["backward-checkpoint"].step_time_s < steps["tuned"].step_time_s
    assert steps["backward-checkpoint"].mean_tail_s < steps["tuned"].mean_tail_s


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_says_all_that_json_promises_in_eighty_columns(name: str) -> None:
    program = small(name)
    simulation = simulate(program, random_costs(program.table, 1))
    body = as_json(simulation, tokens=100)
    assert body["tokens_per_s"] * body["step_time_s"] == pytest.approx(100)
    assert body["peak_bytes"]["memory"] == max(rank["peak_bytes"] for rank in body["ranks"])
    assert body["ops_simulated"] == len(program.table) * body["steps_simulated"]
    lines = as_text(simulation, tokens=100)
    assert max(map(len, lines)) <= 80
    assert any(format_bytes(simulation.peak_bytes) in line for line in lines)


def test_a_budget_below_the_bound_makes_a_simulation_infeasible() -> None:
    program = small("ratrain")
    costs = random_costs(program.table, 1)
    bound = simulate(program, costs).bound_bytes
    for budget, fits in ((bound, True), (bound - 1, False)):
        limited = program.with_setup(replace(program.setup, budget_bytes=budget))
        assert simulate(limited, costs).feasible is fits


def test_one_step_alone_is_said_to_be_one_and_not_to_differ_from_another() -> None:
    program = small("ratrain")
    said = as_text(simulate(program, random_costs(program.table, 1), steps=1), tokens=1)[-1]
    assert said.startswith("this step began with an empty pipeline")


def test_what_is_over_its_budget_is_said_in_units_that_people_read() -> None:
    program = small("ratrain")
    costs = random_costs(program.table, 1)
    budget = simulate(program, costs).bound_bytes - 1
    tight = program.with_setup(replace(program.setup, budget_bytes=budget))
    finding = simulate(tight, costs).verdict.findings[0]
    assert f"1 B over its budget of {format_bytes(budget)};" in finding.message


def test_a_timeline_has_the_last_steps_from_zero_and_their_memory() -> None:
    program = small("ratrain")
    simulation = simulate(program, random_costs(program.table, 1))
    timeline = timeline_of(simulation, periods=2)
    assert len(timeline.spans) == 2 * len(program.table)
    assert {span.step for span in timeline.spans} == {0, 1}
    assert min(span.start_s for span in timeline.spans) == 0
    assert [curve.rank for curve in timeline.memory] == list(range(program.setup.ranks))
    for curve in timeline.memory:
        assert curve.time_s[0] == 0
        assert max(curve.size_bytes) <= simulation.run.peak_bytes[curve.rank]
