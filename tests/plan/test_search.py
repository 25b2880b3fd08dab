"""What the search finds, against the paper's layouts and against trying everything."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from random_jobs import job, jobs

from ratrain.describe.job import JobSpec
from ratrain.errors import Infeasible, RatrainError
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.layout.enumerate import groups_of
from ratrain.plan.layout.plan import plan_of_row
from ratrain.plan.price.trial import step_s_of
from ratrain.plan.search.every_plan import case_of_job
from ratrain.plan.search.layouts import check, search_layouts
from ratrain.plan.search.misfit import planned
from ratrain.program.replicas import Recovery
from ratrain.program.verify import verify
from ratrain.reproduce.published import SMALLEST
from ratrain.reproduce.ratrain_paper import _layouts
from ratrain.simulate.simulate import simulate

EXHAUSTIVE = [
    ("small-qwen", "cpu-lab", 4, 8, 1_000_000_000),
    ("small-llama", "cpu-lab", 3, 12, 250_000_000),
    ("gpt-3.6b", "mt3000", 8, 32, None),
    ("tiny-llama", "mixed-sites", 12, 24, 30_000_000),
    ("llama-2-7b", "mt3000", 16, 32, None),
]


def all_simulated(spec: JobSpec) -> list[float]:
    """The simulated step of every configuration that fits."""
    steps_s = list[float]()
    for group in groups_of(spec):
        checked = check(group)
        for row in np.flatnonzero(checked.fits).tolist():
            plan = plan_of_row(group, row, checked.recovery[row])
            step_s = step_s_of(plan)
            if step_s is not None:
                steps_s.append(step_s)
    return steps_s


def within_one_percent(case: tuple[str, str, int, int, int | None]) -> None:
    model, cluster, devices, sequences, budget = case
    spec = job(model, cluster, devices, sequences, budget_bytes=budget)
    assert search_layouts(spec).best.step_s <= 1.01 * min(all_simulated(spec))


@pytest.mark.slow
def test_the_pick_is_within_one_percent_of_trying_everything() -> None:
    within_one_percent(EXHAUSTIVE[0])


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", EXHAUSTIVE[1:], ids=lambda case: case[0])
def test_the_pick_is_within_one_percent_on_more_clusters(case) -> None:
    within_one_percent(case)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", SMALLEST, ids=lambda row: row.model)
def test_the_plan_fits_and_is_no_slower_than_the_papers_layout(row) -> None:
    theirs = list[float]()
    layouts = _layouts(row, row.pipeline, row.clusters // row.pipeline)
    for laid_out in layouts:
        case = case_of(laid_out)
        simulated = simulate(case.program, case.costs)
        if simulated.feasible:
            theirs.append(simulated.step_time_s)
    best = planned(replace(layouts[0], layout=None, schedule=_open(layouts[0]))).best
    case = Case(best.plan)
    ours = simulate(case.program, case.costs)
    assert ours.feasible
    assert ours.step_time_s <= min(theirs) * 1.0001


def _open(spec: JobSpec):
    return replace(spec.schedule, recovery="auto", gradient_accumulation="auto")


def test_plans_come_fastest_first_and_every_one_is_proved() -> None:
    searched = search_layouts(job("llama-2-7b", "mixed-sites", 8, 16, budget_bytes=30_000_000_000))
    assert all(a.step_s <= b.step_s for a, b in pairwise(searched.tried))
    for tried in searched.tried[:3]:
        assert verify(Case(tried.plan).program).sound


def test_a_last_stage_that_the_job_exempts_keeps_its_activations_in_every_plan() -> None:
    spec = job("small-llama", "cpu-lab", 4, 8)
    spec = replace(spec, schedule=replace(spec.schedule, recovery="exempt-last"))
    for tried in search_layouts(spec).tried:
        stages = Case(tried.plan).program.setup.replicas[0].stages
        assert stages[-1].only.recovery is Recovery.NONE


def test_a_bigger_budget_is_never_slower() -> None:
    steps = [
        search_layouts(job("small-qwen", "cpu-lab", 4, 16, budget_bytes=budget)).best.step_s
        for budget in (1_000_000_000, 1_400_000_000, 2_000_000_000)
    ]
    assert all(more <= less * 1.001 for less, more in pairwise(steps))


def test_when_nothing_fits_it_says_where_what_and_the_cheapest_way_out() -> None:
    with pytest.raises(Infeasible) as error:
        case_of_job(job("llama-2-7b", "mt3000", 2, 8, 2048, 20_000_000_000))
    said = str(error.value)
    for part in ("stage", "device", "mt3000-cluster", "short", "optimizer", "use 8 devices"):
        assert part in said


def test_the_way_out_by_budget_is_one() -> None:
    tight = job("small-llama", "cpu-lab", 2, 8, budget_bytes=40_000_000)
    with pytest.raises(Infeasible) as error:
        planned(tight)
    wanted = error.value.fix.split('"')[1]
    enough = int(float(wanted[:-2]) * (1e6 if wanted.endswith("MB") else 1e9))
    assert planned(job("small-llama", "cpu-lab", 2, 8, budget_bytes=enough)).tried


def check_robust(spec: JobSpec) -> None:
    """Never a traceback, a number that is not finite, or a plan that is refused."""
    try:
        searched = planned(spec)
    except RatrainError as error:
        assert "by closed formula" not in str(error)
        return
    for checked in searched.checked:
        assert np.isfinite(checked.step_s).all() and (checked.step_s > 0).all()
    case = Case(searched.best.plan)
    simulated = simulate(case.program, case.costs)
    assert simulated.feasible
    assert math.isfinite(simulated.step_time_s) and simulated.step_time_s > 0


@pytest.mark.slow
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(jobs())
def test_random_jobs_never_end_in_a_traceback_or_a_refused_plan(spec: JobSpec) -> None:
    check_robust(spec)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(jobs())
@pytest.mark.slow
def test_a_plans_step_is_that_of_its_whole_program(drawn: JobSpec) -> None:
    longer = replace(drawn, batch=replace(drawn.batch, sequences=7 * drawn.batch.sequences + 3))
    try:
        best = planned(longer).best
    except RatrainError:
        return
    case = Case(best.plan)
    assert best.step_s == pytest.approx(simulate(case.program, case.costs).step_time_s, rel=1e-6)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("block", range(10))
def test_two_thousand_random_jobs_never_end_in_a_traceback(block: int) -> None:
    @seed(block)
    @settings(
        max_examples=200,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(jobs())
    def a_tenth_of_them(spec: JobSpec) -> None:
        check_robust(spec)

    a_tenth_of_them()
