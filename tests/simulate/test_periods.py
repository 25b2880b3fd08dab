"""A program of several steps: what is said of a step is the mean over the period."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from costs_made import random_costs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import replica

from ratrain.plan import case_of, load_job
from ratrain.plan.search import search_layouts
from ratrain.program.kind import Kind
from ratrain.program.program import Program
from ratrain.program.setup import Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.runtime.run.reports.itemise import measured_kinds
from ratrain.runtime.seats import Seats
from ratrain.simulate.simulate import Simulation, simulate, timeline_of
from ratrain.simulate.summary import as_json, as_text
from ratrain.timeline.compare import step_times

EXAMPLE = "examples/quickstart.toml"


def averaging(name: str, steps: int, replicas: int = 2) -> Program:
    setup = Setup((replica((2, 2), 4, replicas, ends=True),))
    chosen = replace(strategy(name), sharding=0)
    return apply_strategy(chosen, setup, Choices(average_steps=steps))


def predicted(job: str, *overrides: str) -> Simulation:
    case = case_of(load_job(job, ("checkpoint.every=0", *overrides)))
    return simulate(case.program, case.costs)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["ratrain", "1f1b", "gpipe", "zb-h1"]), st.integers(2, 4), st.integers(0, 10**6)
)
def test_a_rank_s_times_add_up_to_the_mean_step_and_are_itemised_as_the_runtime_does(
    name: str, steps: int, seed: int
) -> None:
    program = averaging(name, steps)
    simulation = simulate(program, random_costs(program.table, seed, interrupts=False), steps=6)
    window, timeline = simulation.window, timeline_of(simulation)
    assert simulation.step_time_s == pytest.approx(sum(window.steps_s) / steps)
    lengths = step_times(timeline)
    assert sorted(lengths) == list(range(1, 2 * steps))
    seats = Seats(program.setup.ranks, 1, (0,), (0,))
    if window.period == simulation.run.periods - 1:
        assert window.steps_s == pytest.approx([lengths[steps + step] for step in range(steps)])
        kinds = measured_kinds(program, seats, timeline, 2 * steps - 1, steps)
        for measured, times in zip(kinds, simulation.ranks, strict=True):
            assert measured["compute"] == pytest.approx(times.compute_s)
            assert measured["recovery"] == pytest.approx(times.recovery_s)
    if window.steady:
        for times in simulation.ranks:
            parts = times.compute_s, times.recovery_s, times.driving_s, *times.waiting_s.values()
            assert sum(parts) == pytest.approx(simulation.step_time_s, rel=1e-2)


@pytest.mark.parametrize("name", ["ratrain", "1f1b", "zb-h1"])
def test_steps_without_an_average_take_what_one_step_takes_by_itself(name: str) -> None:
    alone, several = averaging(name, 1, replicas=1), averaging(name, 5, replicas=1)
    assert not any(Kind(kind) is Kind.AverageW for kind in several.table.kind.tolist())
    costs = random_costs(alone.table, 5, interrupts=False)
    once, simulation = simulate(alone, costs), simulate(several, costs)
    assert simulation.step_time_s == pytest.approx(once.step_time_s)
    assert simulation.window.slowest_s == pytest.approx(once.step_time_s)
    assert simulation.bubble_fraction == pytest.approx(once.bubble_fraction)
    assert simulation.tail_s == pytest.approx(once.tail_s, abs=1e-9)
    for ours, theirs in zip(simulation.ranks, once.ranks, strict=True):
        assert ours.compute_s == pytest.approx(theirs.compute_s)
        assert list(ours.waiting_s.values()) == pytest.approx(list(theirs.waiting_s.values()))
    assert simulation.steps_simulated == 5 * once.steps_simulated


def test_the_rarer_weights_are_averaged_the_less_a_step_takes() -> None:
    times = [
        predicted(EXAMPLE, f"schedule.average_every={steps}").step_time_s for steps in (1, 2, 10)
    ]
    assert times == sorted(times, reverse=True) and times[2] < 0.6 * times[0], times
    synchronous = predicted(EXAMPLE, "schedule.sharding=0").step_time_s
    assert times[2] < synchronous, "links are slow: gradients of every step take longer"
    alone = predicted("examples/small.toml").step_time_s
    ten = predicted("examples/small.toml", "schedule.average_every=10")
    assert ten.step_time_s == pytest.approx(alone, rel=1e-3), "one replica has nothing to average"


def test_text_and_json_say_the_mean_and_the_slowest_step_of_the_period() -> None:
    simulation = predicted(EXAMPLE, "schedule.average_every=10")
    text = as_text(simulation, 4096)
    assert text[1].startswith("mean of a period of 10 steps; the slowest takes "), text[:3]
    assert all(len(line) <= 80 for line in text)
    body = as_json(simulation, 4096)
    assert body["period"] == {"steps": 10, "slowest_step_s": max(simulation.window.steps_s)}
    assert body["tokens_per_s"] == pytest.approx(4096 / body["step_time_s"])
    assert body["steps_simulated"] == 40
    plain = predicted(EXAMPLE)
    assert as_json(plain, 1)["period"] == {"steps": 1, "slowest_step_s": plain.step_time_s}


def test_the_planner_s_closed_form_counts_one_average_a_period() -> None:
    gaps: list[float] = []
    for steps in (2, 10):
        job = load_job(EXAMPLE, (f"schedule.average_every={steps}", "checkpoint.every=0"))
        found = search_layouts(replace(job, layout=None))
        gaps.append(found.mean_gap)
        assert found.best.step_s < predicted(EXAMPLE, "schedule.average_every=1").step_time_s
    assert max(gaps) < 0.15 and np.mean(gaps) < 0.1, gaps
