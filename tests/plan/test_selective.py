"""Selective recovery: scores go where attention stores them, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_jobs import job

from ratrain.cost.activations import stored_scores_bytes
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.presets import model_preset
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.enumerate import groups_of
from ratrain.plan.layout.plan import plan_of_row
from ratrain.plan.price.bill import BACKWARD, FORWARD, NONE, SELECTIVE, bill_of
from ratrain.plan.search.layouts import check, fitted
from ratrain.program.replicas import Recovery
from ratrain.simulate.simulate import simulate

GPU = job("gpt-3.6b", "a100-80g-dgx", 8, 32, 2048)


def pipelined(spec: JobSpec):
    """A group of pipeline 4, data 2, one sequence a micro-batch, level 1 and equal layers."""
    group = next(
        g
        for g in groups_of(spec)
        if (g.layout.pipeline, g.layout.data, g.job.batch.micro_batch) == (4, 2, 1)
    )
    rows = np.flatnonzero((group.sharding == 1) & (group.buffer == group.buffer[0]))
    return group.only(rows[:1])


def test_the_stored_scores_of_gpt_3_are_the_80_of_the_published_formula() -> None:
    """arXiv 2205.05198, section 5: for GPT-3, 5 a s / h = 80."""
    model = model_preset("gpt3-175b")
    sbh = 2048 * model.hidden
    assert stored_scores_bytes(model, 2048, 1, 8) * 8 == 80 * sbh


def test_each_stage_recovers_as_little_as_its_budget_allows() -> None:
    """From an ample budget to a small one: keep, let scores go, recover ahead."""
    group = pipelined(GPU)
    totals = {
        code: int(bill_of(group, np.full((1, 4), code)).total.max())
        for code in (NONE, SELECTIVE, FORWARD)
    }
    assert totals[NONE] > totals[SELECTIVE] > totals[FORWARD]
    for code, total in totals.items():
        limited = replace(GPU.schedule, memory_budget_bytes=total)
        recovery, missing = fitted(replace(group, job=replace(group.job, schedule=limited)))
        assert missing[0] <= 0
        assert recovery[0, 0] == code


def test_selective_recovery_is_slower_than_keeping_and_faster_than_recovering() -> None:
    group = pipelined(GPU)
    steps: list[float] = []
    for code in (NONE, SELECTIVE, BACKWARD):
        selective = plan_of_row(group, 0, np.full(4, code))
        again = plan_of_file(parse_plan(write_plan(file_of_plan(selective)), "p.json"), "p.json")
        assert again.alike.recovery == selective.alike.recovery
        case = Case(again)
        steps.append(simulate(case.program, case.costs).step_time_s)
    assert steps == sorted(steps)
    assert steps[0] < steps[1] < steps[2]


@pytest.mark.parametrize(("cluster", "tried"), [("a100-80g-dgx", True), ("mt3000", False)])
def test_only_where_attention_stores_its_scores_is_it_tried(cluster: str, tried: bool) -> None:
    spec = job("llama-2-7b", cluster, 16, 64, 2048, budget_bytes=20_000_000_000)
    checked = [check(group) for group in groups_of(spec)]
    assert any((each.recovery == SELECTIVE).any() for each in checked) is tried
    group = checked[0].group
    assert (group.units[1].scores_bytes > 0) is tried


def test_a_job_can_ask_for_it_with_any_strategy() -> None:
    schedule = replace(GPU.schedule, name="1f1b", recovery="selective")
    case = case_of(replace(GPU, layout=LayoutSpec(4, 2), schedule=schedule))
    stages = case.program.setup.replicas[0].stages
    assert {stage.only.recovery for stage in stages} == {Recovery.SELECTIVE}
    assert case.facts()["activations"] == "kept without attention scores on every stage"
