"""Long programs drawn out from short ones: the times of the program that would be written out."""

from __future__ import annotations

import pytest
from costs_made import plain_costs

from ratrain.program import repeating
from ratrain.program.kind import Kind
from ratrain.program.repeating import Repeating
from ratrain.program.settled import proved
from ratrain.program.setup import Replica, Setup, Unit, stage
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.simulate import long
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import simulate


def setup_of(stages: int, layers: int, micro_batches: int) -> Setup:
    cut = [
        stage(rank, tuple(Unit(f"{rank}.{n}", 2, 4, 24, 7, 50) for n in range(layers)), 7)
        for rank in range(stages)
    ]
    return Setup((Replica(tuple(cut), micro_batches),))


@pytest.mark.parametrize("name", ["ratrain", "1f1b", "zb-h1", "zero3-heavy"])
@pytest.mark.parametrize("backward_s", [1.0, 2.3])
def test_a_program_drawn_out_has_the_times_and_peaks_of_the_whole_one(
    name: str, backward_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeating, "SMALL", 0)
    monkeypatch.setattr(long, "OPS", 20_000)
    setup, chosen = setup_of(4, 3, 400), strategy(name)
    found = proved(lambda s: apply_strategy(chosen, s, Choices()), setup, chosen.skeleton)
    assert isinstance(found.program, Repeating)
    costs = plain_costs(found.short.table, {Kind.F: 1.0, Kind.B: backward_s, Kind.I: backward_s})
    drawn = simulate_proved(found, costs)
    assert drawn.drawn_out_to is found.program
    whole = simulate(found.program.written_out(), costs, verdict=found.verdict)
    assert drawn.step_time_s == pytest.approx(whole.step_time_s, rel=1e-6)
    for rank, expected in zip(drawn.ranks, whole.ranks, strict=True):
        assert rank.compute_s == pytest.approx(expected.compute_s)
        assert rank.waiting_s == pytest.approx(expected.waiting_s, abs=1e-6 * whole.step_time_s)
        assert rank.peak_bytes == expected.peak_bytes
