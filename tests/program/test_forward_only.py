"""What is left of a training step for validation: sound, and within the step's memory."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from made import Case, cases, small

from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.passes.forward_only import forward_only
from ratrain.program.strategies import STRATEGIES
from ratrain.program.text import read_text, write_text
from ratrain.program.verify import Rule, verify

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(cases())
def test_every_program_leaves_a_sound_forward_that_needs_no_more_memory(case: Case) -> None:
    program = case.program
    validation = forward_only(program)
    verdict = verify(validation)
    assert verdict.sound, verdict.findings
    for mine, whole in zip(verdict.bounds, verify(program).bounds, strict=True):
        assert mine.total_bytes <= whole.total_bytes
    again = read_text(write_text(validation))
    assert again.lanes == validation.lanes and again.setup == validation.setup


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_leaves_forwards_and_what_they_need(name: str) -> None:
    if name == "tensor-parallel-heavy":
        pytest.skip("it needs tensor groups")
    validation = forward_only(small(name, clip=True, save=True))
    assert verify(validation).sound
    kinds = {action.kind for lane in validation.lanes.values() for action in lane}
    gathers = {Kind.Gather_F} if validation.setup.gathers_per_use else set[Kind]()
    assert kinds == {Kind.F, Kind.SEND_F, Kind.RECV_F} | gathers


def test_a_forward_that_is_missing_is_found() -> None:
    validation = forward_only(small("ratrain"))

    def without(_rank: int, _lane: Lane, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        return actions[:-1]

    broken = validation.edit("broken", Lane.COMPUTE, by=without)
    assert Rule.MISSING_FORWARD in {finding.rule for finding in verify(broken).findings}
