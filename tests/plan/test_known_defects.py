"""Mistakes of other planners for unequal devices: the planner's part of
docs/notes/known-defects.md."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from random_jobs import job
from test_left_out import job_file

from ratrain.describe.job import LayoutSpec
from ratrain.plan.case.case import case_of
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.search.layouts import search_layouts
from ratrain.simulate.long import simulate_proved

PAGE = Path(__file__).parents[2] / "docs" / "notes" / "known-defects.md"
TESTS = Path(__file__).parents[1]


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`([a-z]+/test_[a-z_]+\.py)` ([a-z_0-9]+)", PAGE.read_text())
    assert len(named) > 25
    for file, test in named:
        assert f"def test_{test}(" in (TESTS / file).read_text(), (file, test)


@pytest.mark.slow
def test_a_plan_that_fits_only_with_several_stages_on_a_rank_is_found() -> None:
    """Two gathered stages of sixteen layers are too much, two of two are not."""
    budget = 20_000_000_000
    asked = job("llama-2-7b", "a100-80g-dgx", 8, 32, 512, budget, "pe-zero")
    best = search_layouts(asked).best
    layout, size = best.plan.layout, best.plan.job.batch.micro_batch
    assert layout.virtual > 1 and best.bound_bytes <= budget
    once = replace(layout, virtual=1, layers="equal")
    case = case_of(replace(asked, layout=once, batch=replace(asked.batch, micro_batch=size)))
    assert not case.proved.verdict.sound


def test_links_below_a_gigabyte_a_second_are_told_apart(tmp_path: Path) -> None:
    path = job_file(tmp_path, sequences=6, fast=(60, 2))
    text = (tmp_path / "cluster.toml").read_text()
    steps_s: list[float] = []
    for bandwidth in ("120MB/s", "700MB/s", "900MB/s"):
        (tmp_path / "cluster.toml").write_text(text.replace("1Gbit/s", bandwidth))
        spec = load_job(path)
        layout = LayoutSpec(1, 2)
        size = replace(spec.batch, micro_batch=3)
        case = case_of(replace(spec, layout=layout, batch=size))
        steps_s.append(simulate_proved(case.proved, case.costs, steps=3).step_time_s)
    assert steps_s[0] > 1.01 * steps_s[1] > 1.01 * steps_s[2]


def test_little_memory_has_a_plan_in_micro_batches_of_one() -> None:
    spec = job("small-llama", "cpu-lab", 2, 8, 512)
    sizes: list[int] = []
    for budget in range(200_000_000, 1_000_000_000, 200_000_000):
        schedule = replace(spec.schedule, memory_budget_bytes=budget)
        fitting = search_layouts(replace(spec, schedule=schedule)).tried
        sizes += [plan.plan.job.batch.micro_batch for plan in fitting[:1]]
    assert sizes[0] == 1 < max(sizes)
