"""Replicas that average their weights once a period, in any order, tied or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import Case, cases, replica

from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.setup import Accumulation, Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.text import read_text, write_text
from ratrain.program.verify import Rule, verify

REDUCED_LANE = (Kind.AverageW, Kind.TieSync)


def averaged(case: Case, steps: int) -> Program:
    """A random case whose replicas train alone for some steps."""
    choices = replace(
        case.choices,
        accumulation=Accumulation.LOCAL,
        bucket_bytes=None,
        clip=False,
        error_feedback=0,
        average_steps=steps,
    )
    return apply_strategy(replace(case.strategy, sharding=0), case.setup, choices)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.booleans().flatmap(lambda tied: cases(4, tied=tied)), st.integers(1, 3))
def test_any_order_with_any_passes_is_sound_over_a_period(case: Case, steps: int) -> None:
    program = averaged(case, steps)
    verdict = verify(program)
    assert verdict.sound, [finding.message for finding in verdict.findings[:2]]
    assert read_text(write_text(program)) == program
    assert {action.kind for action in program.lane(0, Lane.REDUCE)} <= set(REDUCED_LANE)


@pytest.mark.parametrize("name", ["1f1b", "ratrain"])
def test_a_tied_matrix_is_summed_in_every_step_and_averaged_in_the_last(name: str) -> None:
    setup = Setup((replica((1, 1), 4, 3, ends=True),))
    program = apply_strategy(
        replace(strategy(name), sharding=0), setup, Choices(tie=True, average_steps=2)
    )
    for rank in range(2):
        lane = [(action.kind, action.step) for action in program.lane(rank, Lane.REDUCE)]
        assert lane == [
            *((Kind.TieSync, 0), (Kind.TieSync, 1)),
            *((Kind.AverageW, 1), (Kind.AverageW, 1)),
        ]
    assert verify(program).sound


def test_a_step_whose_tied_copies_are_not_summed_is_told() -> None:
    setup = Setup((replica((1, 1), 4, 3, ends=True),))
    chosen = replace(strategy("ratrain"), sharding=0)
    program = apply_strategy(chosen, setup, Choices(tie=True, average_steps=2))
    lanes = {
        (rank, lane): tuple(a for a in actions if (a.kind, a.step) != (Kind.TieSync, 1))
        for (rank, lane), actions in program.lanes.items()
    }
    rules = {finding.rule for finding in verify(replace(program, lanes=lanes)).findings}
    assert Rule.INCOMPLETE_GRADIENT in rules
