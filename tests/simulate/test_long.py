"""Long programs extrapolated from short ones have the times of the program written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from costs_made import plain_costs
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from made import Case, cases, replica

from ratrain.program import repeating
from ratrain.program.kind import Kind
from ratrain.program.repeating import Repeating, with_micro_batches
from ratrain.program.settled import Proved, proved
from ratrain.program.setup import Setup
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import Choices, Strategy, apply_strategy, strategy
from ratrain.simulate import long
from ratrain.simulate.costs import Costs
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import Simulation, simulate

REPEATING = [name for name in SKELETONS if SKELETONS[name].stride(2, 2) is not None]


@pytest.fixture(autouse=True)
def small_programs_are_kept_short_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no program here would be large enough."""
    monkeypatch.setattr(repeating, "SMALL", 0)


@pytest.mark.parametrize("name", ["ratrain", "1f1b", "zb-h1", "zero3-heavy"])
@pytest.mark.parametrize("backward_s", [1.0, 2.3])
def test_an_extrapolated_program_has_the_times_and_peaks_of_the_whole_one(
    name: str, backward_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup((replica((3,) * 4, 400),))
    program = proved_long(strategy(name), setup, Choices())
    costs = plain_costs(program.short.table, {Kind.F: 1.0, Kind.B: backward_s, Kind.I: backward_s})
    drawn = simulated(program, costs, monkeypatch)
    assert drawn.extrapolated_to is program.program
    assert_as_the_whole(drawn, program, costs)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
    ],
)
@given(cases(skeletons=REPEATING), st.integers(40, 60), st.integers(0, 2**32 - 1))
def test_any_program_of_random_times_is_extrapolated_to_the_times_of_the_whole_one(
    case: Case, rounds: int, seed: int
) -> None:
    alone = replace(case.setup, replicas=case.setup.replicas[:1])
    setup = with_micro_batches(alone, lambda _: alone.replicas[0].ranks * rounds)
    program = proved_long(case.strategy, setup, case.choices)
    assume(isinstance(program.program, Repeating))
    rng = np.random.default_rng(seed)
    times_s = {kind: float(rng.exponential()) for kind in Kind if not kind.is_barrier}
    costs = plain_costs(program.short.table, times_s)
    with pytest.MonkeyPatch.context() as monkeypatch:
        drawn = simulated(program, costs, monkeypatch)
    assume(drawn.extrapolated_to is not None)
    assert_as_the_whole(drawn, program, costs)


def proved_long(chosen: Strategy, setup: Setup, choices: Choices) -> Proved:
    return proved(lambda s: apply_strategy(chosen, s, choices), setup, chosen.skeleton)


def simulated(program: Proved, costs: Costs, monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """Its simulation, extrapolated if that can be done at all."""
    monkeypatch.setattr(long, "OPS", 4 * program.program_ops - 1)
    return simulate_proved(program, costs)


def assert_as_the_whole(drawn: Simulation, program: Proved, costs: Costs) -> None:
    """Every figure is within a millionth of the step of that of the program written out."""
    assert isinstance(program.program, Repeating)
    whole = simulate(program.program.written_out(), costs, verdict=program.verdict)
    close = {"rel": 0, "abs": 1e-6 * whole.step_time_s}
    assert drawn.step_time_s == pytest.approx(whole.step_time_s, **close)
    for rank, expected in zip(drawn.ranks, whole.ranks, strict=True):
        assert rank.compute_s == pytest.approx(expected.compute_s, **close)
        assert rank.recovery_s == pytest.approx(expected.recovery_s, **close)
        assert rank.driving_s == pytest.approx(expected.driving_s, **close)
        assert rank.waiting_s == pytest.approx(expected.waiting_s, **close)
        assert rank.peak_bytes == expected.peak_bytes
