"""The lower bound of a step against simulated steps."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from random_jobs import SKELETONS, candidates

from ratrain.plan.build import Candidate
from ratrain.plan.durations import costs_of
from ratrain.plan.enumerate import Group
from ratrain.plan.least_time import least_step_s
from ratrain.program.strategies import STRATEGIES, apply_strategy
from ratrain.simulate.simulate import step_time_s

Row = tuple[Group, Candidate, np.ndarray]
quick = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
every_schedule = candidates(tuple(sorted(STRATEGIES)) + SKELETONS)


@quick
@given(every_schedule)
def test_no_simulated_step_is_shorter_than_its_lower_bound(row: Row) -> None:
    plan = row[1]
    program = apply_strategy(plan.strategy, plan.setup, plan.choices)
    step_s = step_time_s(program, costs_of(plan.job, plan.placement, program.setup), steps=5)
    costs = costs_of(plan.job, plan.placement, plan.setup)
    least_s = least_step_s(plan.strategy, plan.setup, plan.choices, costs)
    assert 0 < least_s <= step_s * (1 + 1e-9)
