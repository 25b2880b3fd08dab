"""The planner's own plans in which kinds of device share stages: drafts, their bounds, and where
they win."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from member_drafts import member_drafts
from test_left_out import job_file
from test_unequal_search import BENCHMARKS, stages_of, verb

from ratrain.cli.main import ratrain
from ratrain.describe.job import JobSpec
from ratrain.plan.case.case import Case, case_of_plan
from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.on_devices import plans_of
from ratrain.plan.draft.pools import Post, StageMembers
from ratrain.plan.draft.space import Side, Space
from ratrain.plan.file.checks import untrainable
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.layout.plan import Plan
from ratrain.plan.price.trial import tried_out
from ratrain.plan.search.drafts import DraftSearch
from ratrain.plan.search.limits import effort_of
from ratrain.plan.search.moves import MOVES, changed
from ratrain.plan.search.tried import Timed, fastest_of
from ratrain.program.replicas import Recovery
from ratrain.program.text.write import write_text
from ratrain.simulate.long import simulate_proved

sys.path.insert(0, str(BENCHMARKS))
try:
    members: Any = import_module("members")
    drawn: Any = import_module("random_clusters")
finally:
    sys.path.remove(str(BENCHMARKS))
Cluster, Kind, random_cluster, write_job = (
    drawn.Cluster, drawn.Kind, drawn.random_cluster, drawn.write_job
)  # fmt: skip
special_of = members.special

LEVEL_1 = StateMode(1, False)


def two_kinds(folder: Path, sequences: int = 12) -> JobSpec:
    return load_job(job_file(folder, sequences=sequences, fast=(40, 2), slow=(15, 3)))


def space_of(spec: JobSpec, *states: StateMode) -> Space:
    return Space(stages_of(spec), states or (LEVEL_1,))


def drafts_of(space: Space, size: int = 1, state: StateMode = LEVEL_1) -> list[Draft]:
    made = member_drafts(space, state)
    return [draft for draft in made if all(part.micro_batch == size for part in draft.parts)]


def search(spec: JobSpec, *states: StateMode) -> list[Timed]:
    """What is found of stages with members, by themselves."""
    seeker = DraftSearch(spec, None, effort_of(spec.cluster.devices))
    seeker.space = space_of(spec, *states)
    return seeker.best_of((), inf, lambda draft: draft.has_members)


def recovering(draft: Draft) -> Draft:
    """The draft with every member that computes in recovery."""
    parts = [
        replace(
            part,
            works=tuple(
                tuple(work._replace(recovery=Recovery.FORWARD) for work in works)
                for works in part.works
            ),
        )
        for part in draft.parts
    ]
    return replace(draft, parts=tuple(parts))


def holding(space: Space, draft: Draft) -> list[Draft]:
    """What moves make of a draft in which a device holds a stage and computes nothing."""
    return [
        other
        for other in MOVES["idle"].of(space, draft)
        if any(stage.holding for part in other.parts for stage in part.members)
    ]


def with_budget(spec: JobSpec, budget: int) -> JobSpec:
    return replace(spec, schedule=replace(spec.schedule, memory_budget_bytes=budget))


def checked(spec: JobSpec, plan: Plan, step_s: float) -> None:
    """The plan is trainable, proved, and its file is read as the same program and the same step."""
    assert not untrainable(plan)
    text = write_plan(file_of_plan(plan))
    case = case_of_plan(parse_plan(text, str(spec.path)), str(spec.path))
    assert isinstance(case, Case)
    assert case.proved.verdict.sound
    assert write_text(case.program) == write_text(Case(plan).program)
    assert write_plan(file_of_plan(case.plan)) == text
    steps_s = [
        simulate_proved(case.proved, case.costs, steps=steps).step_time_s for steps in (3, 4)
    ]
    assert any(read_s == pytest.approx(step_s, rel=1e-12) for read_s in steps_s)


def test_no_device_is_twice_in_a_draft_and_every_micro_batch_has_one_server_in_each_stage(
    tmp_path: Path,
) -> None:
    made = drafts_of(space_of(two_kinds(tmp_path)))
    assert {len(draft.parts) for draft in made} >= {1, 2}
    assert {sum(draft.used(2)) for draft in made} >= {4, 5}
    for draft in made:
        assert all(used <= there for used, there in zip(draft.used(2), (2, 3), strict=True))
        assert sum(draft.shares) == 12
        for part, share in zip(draft.parts, draft.shares, strict=True):
            assert sum(part.layers) == 4
            for shares in part.serves(share):
                assert sorted(m for of_member in shares for m in of_member) == list(range(share))
                assert all(shares)


def test_members_share_a_stage_by_their_speed(tmp_path: Path) -> None:
    for draft in drafts_of(space_of(two_kinds(tmp_path, sequences=48))):
        for part, share in zip(draft.parts, draft.shares, strict=True):
            for works, shares in zip(part.works, part.serves(share), strict=True):
                rates = [1 / work.busy_s for work in works]
                for rate, of_member in zip(rates, shares, strict=True):
                    assert abs(len(of_member) - share * rate / sum(rates)) <= 1


@pytest.mark.slow
def test_no_plan_is_faster_than_its_draft_says_and_processes_can_run_all(tmp_path: Path) -> None:
    spec = two_kinds(tmp_path)
    space = space_of(spec)
    for count in (1, 2):
        made = [draft for draft in drafts_of(space) if len(draft.parts) == count]
        for draft in sorted(made, key=lambda draft: draft.estimate_s)[:5]:
            plans = plans_of(spec, space.stages.pools, draft)
            timed, short = fastest_of(plans, draft, inf)
            assert timed is not None and not short
            assert timed.step_s >= draft.alone_s * (1 - 1e-12)
            assert space.clock.step_s(draft) == pytest.approx(timed.step_s, rel=0.02)
            checked(spec, timed.plan, timed.step_s)


@pytest.mark.slow
def test_a_host_is_one_member_of_several_devices_beside_members_of_one(tmp_path: Path) -> None:
    rack = Cluster((Kind(30, 4, one_host=True), Kind(20, 2, one_host=False)), "1Gbit/s", 4, 8)
    spec = load_job(write_job(tmp_path, rack))
    space = space_of(spec)
    unlike = [
        draft
        for draft in drafts_of(space)
        if any(len({post.tensor for post in posts}) > 1 for posts in draft.parts[0].posts)
    ]
    assert {post.tensor for draft in unlike for post in draft.all_posts} == {1, 2, 4}
    draft = min(unlike, key=lambda draft: draft.estimate_s)
    timed, _ = fastest_of(plans_of(spec, space.stages.pools, draft), draft, inf)
    assert timed is not None
    checked(spec, timed.plan, timed.step_s)


def test_changes_move_a_layer_or_a_device_and_leave_one_idle(tmp_path: Path) -> None:
    space = space_of(two_kinds(tmp_path))
    start = next(draft for draft in drafts_of(space) if draft.parts[0].layers == (2, 2))
    (part,) = start.parts
    near = [*changed(space, start), *changed(space, start, polishing=True)]
    others = [draft.parts[0] for draft in near]
    assert any(o.layers != part.layers and o.posts == part.posts for o in others)
    assert any(o.posts != part.posts for o in others)
    assert any(o.micro_batch == 2 for o in others)
    counts = {sum(draft.used(2)) - sum(start.used(2)) for draft in near}
    assert counts >= {-1, 0}


def test_a_stage_fits_as_its_proof_says_where_another_stage_has_more_holders(
    tmp_path: Path,
) -> None:
    """What reductions need is sized by the most holders of any stage."""
    spec, fast, slow = two_kinds(tmp_path), Post(0, 1), Post(1, 1)
    side = Side((StageMembers((fast,)), StageMembers((slow,) * 3)), 1, (2, 2))
    space = space_of(spec)
    draft = space.draft([side], LEVEL_1)
    assert draft is not None
    plan = next(plans_of(spec, space.stages.pools, draft))
    proved, _ = tried_out(plan)
    peak = max(bound.total_bytes for bound in proved.verdict.bounds)
    assert peak == proved.verdict.bounds[0].total_bytes
    for missing in (0, 1):
        tight = space_of(with_budget(spec, peak - missing)).draft([side], LEVEL_1)
        assert tight is not None
        assert (tight.parts[0].recovery[0] is Recovery.NONE) is (missing == 0)


@pytest.mark.slow
def test_a_member_whose_memory_is_short_recovers(tmp_path: Path) -> None:
    spec = two_kinds(tmp_path)
    budget = search(spec)[0].bound_bytes - 400_000
    found = search(with_budget(spec, budget))
    assert found
    assert all(plan.bound_bytes <= budget for plan in found)
    modes = {mode for plan in found for r in plan.plan.replicas for mode in r.recovery}
    assert any(mode.again for mode in modes)


@pytest.mark.slow
def test_where_memory_binds_a_device_that_is_left_holds_a_stage_and_computes_nothing(
    tmp_path: Path,
) -> None:
    spec = two_kinds(tmp_path)
    ample = space_of(spec)
    assert not any(holding(ample, draft) for draft in drafts_of(ample))
    spec = load_job(job_file(tmp_path, fast=(40, 2), slow=(1, 2)))
    tight = with_budget(spec, search(spec)[0].bound_bytes * 7 // 10)
    space, proved = space_of(tight), 0
    made = [other for draft in drafts_of(space) for other in holding(space, draft)]
    assert made
    for draft in made[:40]:
        plans = plans_of(tight, space.stages.pools, recovering(draft))
        timed, _ = fastest_of(plans, draft, inf)
        if timed is not None:
            proved += 1
            assert any(m.serves == () for m in timed.plan.setup.members)
            checked(tight, timed.plan, timed.step_s)
    assert proved


@pytest.mark.slow
def test_level_3_is_drafted_where_the_schedule_gathers_once_and_memory_binds(
    tmp_path: Path,
) -> None:
    path = job_file(tmp_path, fast=(40, 2), slow=(15, 3))
    path.write_text(path.read_text().replace('"ratrain"', '"pe-zero"'))
    spec = load_job(path)
    level_3 = StateMode(3, False)
    ample = search(spec, LEVEL_1, level_3)
    assert ample[0].plan.mode.sharding == 1
    tight = with_budget(spec, ample[0].bound_bytes * 8 // 10)
    found = search(tight, LEVEL_1, level_3)
    assert 3 in {plan.plan.mode.sharding for plan in found}
    for plan in found[:3]:
        checked(tight, plan.plan, plan.step_s)


@pytest.mark.parametrize(
    "states",
    [(StateMode(3, False),), (StateMode(2, True),)],
)
def test_states_that_members_cannot_share_are_not_drafted(
    tmp_path: Path, states: tuple[StateMode, ...]
) -> None:
    assert not search(two_kinds(tmp_path), *states)


@pytest.mark.slow
def test_what_is_drafted_on_random_clusters_is_proved_and_read_back(tmp_path: Path) -> None:
    special = set[str]()
    for seed in range(12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        spec = load_job(write_job(folder, random_cluster(Random(seed), 7)))
        for plan in search(spec)[:4]:
            special.update(special_of(plan.plan))
            checked(spec, plan.plan, plan.step_s)
    assert special >= {"several replicas", "unequal degrees", "idle devices"}


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
    assert "the fastest plan with identical replicas takes 190 ms, " in words
    assert "stage 2: rank" in words
    stages = json.loads(plan.read_text())["replicas"][0]["stages"]
    assert sum(len(stage.get("members", ["alone"])) for stage in stages) == 8
    step_s = verb("simulate", str(plan))["step_time_s"]
    assert step_s < 0.85 * 0.19
    verb("verify", str(plan))
    explained = CliRunner().invoke(ratrain, ["explain", str(plan)])
    assert "less time than the best plan with identical replicas" in explained.output
    assert "serves" in explained.output
