"""The planner's own plans in which kinds of device share stages: drafts, their bounds, and where
they win."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_left_out import job_file
from test_unequal_search import BENCHMARKS, stages_of, verb

from ratrain.cli.main import ratrain
from ratrain.describe.job import JobSpec
from ratrain.plan.case_of_plan import case_of_plan
from ratrain.plan.enumerate import StateMode
from ratrain.plan.jobs import load_job
from ratrain.plan.plan_file import parse_plan
from ratrain.plan.plan_writing import write_plan
from ratrain.plan.trainable import untrainable
from ratrain.plan.unequal_build import file_of_plan
from ratrain.plan.unequal_members import MembersDraft, members_changed, members_drafts
from ratrain.plan.unequal_members_search import members_search, plans_of_members
from ratrain.plan.unequal_stages import Stages
from ratrain.plan.unequal_trial import fastest_of
from ratrain.simulate.long import simulate_proved

LEVEL_1 = StateMode(1, False)


def two_kinds(folder: Path, sequences: int = 12) -> JobSpec:
    return load_job(job_file(folder, sequences=sequences, fast=(40, 2), slow=(15, 3)))


def drafts_of(stages: Stages, size: int = 1) -> list[MembersDraft]:
    return list(members_drafts(stages, size, LEVEL_1))


def test_every_device_holds_a_stage_and_every_micro_batch_has_one_server_in_each(
    tmp_path: Path,
) -> None:
    stages = stages_of(two_kinds(tmp_path))
    made = drafts_of(stages)
    assert len({draft.shapes for draft in made}) == len(made)
    assert {len(draft.shapes) for draft in made} == {2, 3, 4}
    for draft in made:
        posts = [post.pool for shape in draft.shapes for post in shape]
        assert sorted(posts) == [0, 0, 1, 1, 1]
        assert sum(draft.layers) == 4
        for shares in draft.serves:
            assert sorted(m for share in shares for m in share) == list(range(12))
            assert all(shares)


def test_members_share_a_stage_by_their_speed(tmp_path: Path) -> None:
    stages = stages_of(two_kinds(tmp_path, sequences=48))
    for draft in drafts_of(stages):
        for works, shares in zip(draft.works, draft.serves, strict=True):
            rates = [1 / work.busy_s for work in works]
            for rate, share in zip(rates, shares, strict=True):
                assert abs(len(share) - 48 * rate / sum(rates)) <= 1


def test_no_plan_is_faster_than_its_draft_says_and_processes_can_run_all(tmp_path: Path) -> None:
    stages = stages_of(two_kinds(tmp_path))
    for draft in sorted(drafts_of(stages), key=lambda draft: draft.estimate_s)[:6]:
        timed, short = fastest_of(plans_of_members(stages, draft), draft, inf)
        assert timed is not None and not short
        assert timed.step_s >= draft.least_s
        assert not untrainable(timed.plan)
        assert timed.plan.setup.replicas[0].stages[0].members[0].rank == 0


def test_a_plan_file_of_members_is_read_as_the_plan_that_was_simulated(tmp_path: Path) -> None:
    spec = two_kinds(tmp_path)
    found = members_search(stages_of(spec), (LEVEL_1,), inf, lambda: None)
    text = write_plan(file_of_plan(found.plans[0].plan))
    case = case_of_plan(parse_plan(text, str(spec.path)), str(spec.path))
    assert case.setup == found.plans[0].plan.setup
    read_s = simulate_proved(case.proved, case.costs, steps=3).step_time_s
    assert read_s == pytest.approx(found.plans[0].step_s, rel=1e-12)


def test_changes_move_a_layer_or_a_device_and_keep_all_of_them(tmp_path: Path) -> None:
    stages = stages_of(two_kinds(tmp_path))
    start = next(draft for draft in drafts_of(stages) if draft.layers == (2, 2))
    near = list(members_changed(stages, start))
    assert any(draft.layers != start.layers and draft.shapes == start.shapes for draft in near)
    assert any(draft.shapes != start.shapes for draft in near)
    assert any(draft.micro_batch == 2 for draft in near)
    for draft in near:
        assert sum(map(len, draft.shapes)) == 5 and sum(draft.layers) == 4


def test_a_member_whose_memory_is_short_recovers(tmp_path: Path) -> None:
    spec = two_kinds(tmp_path)
    ample = members_search(stages_of(spec), (LEVEL_1,), inf, lambda: None)
    budget = ample.plans[0].bound_bytes - 400_000
    tight = replace(spec, schedule=replace(spec.schedule, memory_budget_bytes=budget))
    found = members_search(stages_of(tight), (LEVEL_1,), inf, lambda: None)
    assert found.plans
    assert all(plan.bound_bytes <= budget for plan in found.plans)
    modes = {mode for plan in found.plans for r in plan.plan.replicas for mode in r.recovery}
    assert any(mode.again for mode in modes)


@pytest.mark.parametrize(
    "states",
    [(StateMode(3, False),), (StateMode(2, True),)],
)
def test_states_that_members_cannot_share_are_not_drafted(
    tmp_path: Path, states: tuple[StateMode, ...]
) -> None:
    found = members_search(stages_of(two_kinds(tmp_path)), states, inf, lambda: None)
    assert (found.plans, found.drafts, found.simulated) == ((), 0, 0)


@pytest.mark.slow
def test_where_stages_share_devices_better_than_pipelines_do_the_planner_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four and four devices for four layers: no pipelines are so well in balance."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    exhaustive: Any = import_module("exhaustive")
    sys.modules.pop("exhaustive", None)
    kinds = exhaustive.Kind(40, 4, one_host=False), exhaustive.Kind(30, 4, one_host=False)
    path = exhaustive.write_job(tmp_path, exhaustive.Cluster(kinds, "1Gbit/s", 4, 8))
    plan = tmp_path / "plan.json"
    run = CliRunner().invoke(ratrain, ["plan", str(path), "-o", str(plan)])
    assert run.exit_code == 0
    words = " ".join(run.output.split())
    assert "the fastest plan with identical replicas takes 190 ms, 22." in words
    assert "stage 2: rank 4 serves" in words
    stages = json.loads(plan.read_text())["replicas"][0]["stages"]
    assert sum(len(stage.get("members", ["alone"])) for stage in stages) == 8
    step_s = verb("simulate", str(plan))["step_time_s"]
    assert step_s < 0.83 * 0.19
    verb("verify", str(plan))
    explained = CliRunner().invoke(ratrain, ["explain", str(plan)])
    assert "This plan takes 18" in explained.output
    assert "serves" in explained.output
