"""Error feedback in jobs, plans and prices: billed, named, kept in plan files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.file.form import file_of_plan, load_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.search.every_plan import EveryPlan
from ratrain.plan.search.layouts import search_layouts
from ratrain.plan.words.explain import explanation_of, explanation_text
from ratrain.program.kind import Kind
from ratrain.report.facts.job import contents_of_job
from ratrain.report.page import page

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICKSTART = EXAMPLES / "quickstart.toml"
BF16 = ("schedule.memory_budget=400MB", "schedule.gradient_wire=bf16")
FED = (*BF16, "schedule.error_feedback=true")
WORDS = "gradients travel in bf16, error feedback"


def quickstart(*overrides: str) -> JobSpec:
    return load_job(QUICKSTART, overrides)


@pytest.mark.parametrize(
    ("more", "copies"), [((), 1), (("train.clip_norm=1.0",), 2)], ids=["", "clipped"]
)
def test_a_rank_holds_one_residual_of_each_gradient_and_two_where_a_step_may_be_skipped(
    more: tuple[str, ...], copies: int
) -> None:
    case = case_of(quickstart(*FED, *more))
    for bound in case.proved.verdict.bounds:
        residuals = sum(bound.by_family.get(name, 0) for name in ("residual", "residual_next"))
        member = case.setup.members[bound.rank]
        assert residuals == copies * sum(unit.gradient_bytes for unit in member.units)


def test_fp16_always_keeps_two_since_any_of_its_steps_may_overflow() -> None:
    spec = quickstart()
    scaled = replace(spec, schedule=replace(spec.schedule, dtype="fp16", error_feedback=True))
    assert scaled.residuals == 2 and quickstart(*BF16).residuals == 0


def test_a_plan_file_keeps_error_feedback_and_leaves_it_out_where_there_is_none() -> None:
    without = write_plan(file_of_plan(search_layouts(quickstart(*BF16)).best.plan))
    assert "error_feedback" not in without
    written = write_plan(file_of_plan(search_layouts(quickstart(*FED)).best.plan))
    assert '"error_feedback": true' in written
    again = plan_of_file(parse_plan(written, "a.json"), "a.json")
    assert again.job.schedule.error_feedback and again.choices.error_feedback == 1
    assert write_plan(file_of_plan(again)) == written.replace(_predicted(written), "")


def _predicted(text: str) -> str:
    lines = [line for line in text.splitlines(keepends=True) if '"predicted"' in line]
    return lines[0] if lines else ""


def test_a_plan_file_that_feeds_no_error_back_is_refused_as_a_job_is() -> None:
    written = write_plan(file_of_plan(search_layouts(quickstart(*FED)).best.plan))
    exact = written.replace('  "gradient_wire": "bf16",\n', "")
    with pytest.raises(SpecError, match="no rounding error to feed back"):
        plan_of_file(parse_plan(exact, "a.json"), "a.json")


@pytest.mark.slow
def test_headline_facts_and_explanation_say_it() -> None:
    case = case_of(quickstart(*FED))
    assert WORDS in case.headline() and case.facts()["error_feedback"] is True
    assert case_of(quickstart(*BF16)).facts()["error_feedback"] is False
    plan = search_layouts(quickstart(*FED)).best.plan
    text = "\n".join(explanation_text(explanation_of(plan, EveryPlan(plan.job, None, None))))
    assert "rounding residuals" in text and "r residuals" in text


@pytest.mark.slow
def test_a_page_says_it_and_draws_residuals_as_memory_of_their_own() -> None:
    html = page(contents_of_job(QUICKSTART, overrides=FED))
    assert WORDS in html and "rounding residuals" in html
    assert "rounding residuals" not in page(contents_of_job(QUICKSTART, overrides=BF16))


def test_a_plan_of_unlike_replicas_holds_residuals_too(tmp_path: Path) -> None:
    table = json.loads((EXAMPLES / "unequal-replicas.json").read_text())
    table |= {"gradient_wire": "bf16", "error_feedback": True}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(table))
    case = Case(plan_of_file(load_plan(path), str(path)))
    assert WORDS in case.headline() and case.facts()["error_feedback"]
    members = {
        case.setup.first_rank[number] + member.rank: member
        for number, replica in enumerate(case.setup.replicas)
        for stage in replica.stages
        for member in stage.members
    }
    assert case.proved.verdict.sound and len(case.proved.verdict.bounds) == 4
    for bound in case.proved.verdict.bounds:
        whole = sum(unit.gradient_bytes for unit in members[bound.rank].units)
        assert bound.by_family["residual"] == whole


def test_reductions_alone_take_longer_by_a_pass_over_residuals() -> None:
    without, fed = (case_of(quickstart(*overrides)).costs.work for overrides in (BF16, FED))
    assert (fed[Kind.GradSync].fixed_s > without[Kind.GradSync].fixed_s).all()
    assert np.array_equal(fed[Kind.GradSync].volume_bytes, without[Kind.GradSync].volume_bytes)
    for kind in (Kind.UpdateShard, Kind.PrefetchW, Kind.SEND_F, Kind.B):
        assert np.array_equal(fed[kind].fixed_s, without[kind].fixed_s)
