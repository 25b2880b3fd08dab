"""The lower bound of a step against simulated steps."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_jobs import SKELETONS, candidates
from random_plans import random_plan

from ratrain.errors import SpecError
from ratrain.plan.case.case import Case
from ratrain.plan.file.form import parse_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.enumerate import Group
from ratrain.plan.layout.plan import Plan
from ratrain.plan.price.places import costs_of
from ratrain.plan.price.trial import least_step_s
from ratrain.program.strategies import STRATEGIES, apply_strategy
from ratrain.simulate.simulate import step_time_s

Row = tuple[Group, Plan, np.ndarray]
quick = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
every_schedule = candidates(tuple(sorted(STRATEGIES)) + SKELETONS)


@pytest.mark.slow
def test_no_plan_of_unequal_replicas_is_shorter_than_its_lower_bound() -> None:
    """Each stage counts what it recovers itself, not what the strategy would."""
    tight = 0
    for seed in range(60):
        try:
            plan = plan_of_file(parse_plan(json.dumps(random_plan(Random(seed))), ""), "p.json")
        except SpecError:
            continue
        case = Case(plan)
        step_s = step_time_s(case.program, case.costs, steps=5)
        costs = costs_of(plan, plan.setup)
        least_s = least_step_s(plan.strategy, plan.setup, plan.choices, costs)
        assert 0 < least_s <= step_s * (1 + 1e-9), seed
        tight += least_s > 0.5 * step_s
    assert tight > 5


@pytest.mark.slow
@quick
@given(every_schedule)
def test_no_simulated_step_is_shorter_than_its_lower_bound(row: Row) -> None:
    plan = row[1]
    program = apply_strategy(plan.strategy, plan.setup, plan.choices)
    step_s = step_time_s(program, costs_of(plan, program.setup), steps=5)
    costs = costs_of(plan, plan.setup)
    least_s = least_step_s(plan.strategy, plan.setup, plan.choices, costs)
    assert 0 < least_s <= step_s * (1 + 1e-9)
