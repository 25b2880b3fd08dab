"""Where a rank holds the whole model, the planner lets a step's ends go layer by layer."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from random_jobs import job

from ratrain.cli.main import ratrain
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.search.layouts import search_layouts
from ratrain.plan.search.misfit import misfits
from ratrain.plan.words.planned import table
from ratrain.program.skeletons import SKELETONS
from ratrain.program.text import write_text
from ratrain.simulate.simulate import simulate

CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"
LAYOUTS = [LayoutSpec(1, data) for data in (2, 3, 4)]


def asked(layout: LayoutSpec, budget_bytes: int | None = None, **options: object) -> JobSpec:
    """Eight micro-batches a replica whose exchange takes as long as their arithmetic."""
    count = layout.devices
    spec = job("tiny-llama", "cpu-lab", count, 8 * layout.data, 64, budget_bytes)
    schedule = replace(spec.schedule, **options)  # pyright: ignore[reportArgumentType]
    return replace(spec, layout=layout, schedule=schedule)


def predicted_s(case: Case) -> float:
    return simulate(case.program, case.costs).step_time_s


def together(case: Case) -> int:
    return SKELETONS[case.strategy.skeleton].together


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"data {layout.data}")
def test_an_order_that_hides_more_of_the_exchange_is_chosen_and_proved(layout: LayoutSpec) -> None:
    case = case_of(asked(layout))
    usual = case_of(asked(layout, skeleton="1f1b"))
    assert together(case) > 1
    assert case.proved.verdict.sound
    assert predicted_s(case) < 0.95 * predicted_s(usual)
    assert case.facts()["order"] == case.strategy.skeleton
    assert any(f"order {case.strategy.skeleton}" in line for line in case.headline())


@pytest.mark.slow
def test_the_choice_is_the_fastest_of_all_that_fit() -> None:
    case = case_of(asked(LAYOUTS[1]))
    for name in SKELETONS:
        if SKELETONS[name].together > 1:
            other = case_of(asked(LAYOUTS[1], skeleton=name))
            assert predicted_s(case) <= 1.003 * predicted_s(other), name


@pytest.mark.slow
def test_a_smaller_budget_takes_fewer_together_and_never_more_memory_than_it_has() -> None:
    ample = case_of(asked(LAYOUTS[2]))
    usual = case_of(asked(LAYOUTS[2], skeleton="1f1b"))
    bounds = [max(b.total_bytes for b in c.proved.verdict.bounds) for c in (usual, ample)]
    assert bounds[0] < bounds[1]
    budgets = [bounds[0] + part * (bounds[1] - bounds[0]) // 4 for part in range(5)]
    cases = [case_of(asked(LAYOUTS[2], budget)) for budget in budgets]
    for case, budget in zip(cases, budgets, strict=True):
        assert case.proved.verdict.sound
        assert max(bound.total_bytes for bound in case.proved.verdict.bounds) <= budget
    steps_s = [predicted_s(case) for case in cases]
    assert all(more <= less for less, more in pairwise(steps_s))
    assert together(cases[0]) < together(cases[-1]) == together(ample)


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (LAYOUTS[0], {"skeleton": "1f1b"}),
        (LAYOUTS[0], {"without": ("update-prefetch",)}),
        (LAYOUTS[0], {"name": "baseline-1f1b"}),
        (LAYOUTS[0], {"name": "paper-backward-checkpoint"}),
        (LayoutSpec(1), {}),
        (LayoutSpec(2, 2), {}),
    ],
    ids=["named", "no prefetch", "baseline", "as published", "one rank", "pipeline"],
)
def test_the_strategy_s_own_order_stays(layout: LayoutSpec, options: dict[str, object]) -> None:
    case = case_of(asked(layout, None, **options))
    assert case.strategy.skeleton == "1f1b"


def test_a_search_tries_such_orders_and_a_plan_file_keeps_its_order() -> None:
    tried = search_layouts(replace(asked(LAYOUTS[2]), layout=None)).tried
    plan = next(t for t in tried if SKELETONS[t.plan.strategy.skeleton].together > 1)
    text = write_plan(file_of_plan(plan.plan))
    again = Case(plan_of_file(parse_plan(text, "plan.json"), "plan.json"))
    assert again.strategy.skeleton == plan.plan.strategy.skeleton
    assert write_text(again.program) == write_text(Case(plan.plan).program)
    assert predicted_s(again) == pytest.approx(plan.step_s)


def test_plans_that_differ_in_their_order_alone_are_told_apart_in_words_and_in_json() -> None:
    tried = search_layouts(replace(asked(LAYOUTS[2]), layout=None)).tried
    shown = " ".join(" ".join(table(tried, tried[0].step_s, 9)).split())
    for each in tried:
        order = each.plan.strategy.skeleton
        assert Case(each.plan).facts()["order"] == order
        assert (f"{Case(each.plan).name}".endswith(f", order {order}")) == (order != "1f1b")
        assert order in shown or order == "1f1b"


def test_a_plan_that_fits_in_another_order_alone_says_that_order(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f"""
[model]
name = "tiny-llama"
sequence_length = 128
[cluster]
name = "{CLUSTERS / "quickstart-lab.toml"}"
devices = 3
[batch]
sequences = 192
[schedule]
name = "ratrain"
dtype = "fp32"
memory_budget = "45MB"
""")
    near = misfits(search_layouts(load_job(path)), 1)[0]
    assert SKELETONS[near.plan.strategy.skeleton].together > 1
    assert near.change.startswith("order layer-major-")
    assert near.change != f"order {near.plan.strategy.skeleton}"


def test_simulate_names_the_order_in_words_and_in_json(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("""
[model]
name = "tiny-llama"
sequence_length = 64
[cluster]
name = "cpu-lab"
devices = 3
[batch]
sequences = 24
[layout]
pipeline = 1
data = 3
[schedule]
name = "ratrain"
dtype = "fp32"
""")
    words = CliRunner().invoke(ratrain, ["simulate", str(path)])
    assert words.exit_code == 0, words.output
    answer = CliRunner().invoke(ratrain, ["simulate", str(path), "--json"])
    order = json.loads(answer.output)["job"]["order"]
    assert SKELETONS[order].together > 1
    assert f"order {order}" in words.output
