"""Plans with stages of several members that the planner drafts, on real processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from crew import Crew
from member_drafts import member_drafts
from runs_made import Setting, write_job
from test_unlike_replicas import assert_as_alone, assert_held
from training import train

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.on_devices import plans_of
from ratrain.plan.draft.pools import pools_of
from ratrain.plan.draft.space import Space
from ratrain.plan.draft.stages import Stages
from ratrain.plan.file.form import file_of_plan, write_plan
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.jobs import load_job_to_plan, strategy_of
from ratrain.plan.layout.plan import MODES, Plan
from ratrain.plan.search.tried import fastest_of

DEVICES = 6
MODEL = (("num_key_value_heads", 4),)
PLANNED = Setting("ratrain", learning_rate=1e-3, model=MODEL, planned=True, planned_ranks=DEVICES)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def six() -> Generator[Crew]:
    with Crew(DEVICES) as made_of_six:
        yield made_of_six


def has_several_replicas(draft: Draft) -> bool:
    return len(draft.parts) > 1


def has_unlike_degrees(draft: Draft) -> bool:
    shapes = [shape for part in draft.parts for shape in part.posts]
    return any(len({post.tensor for post in shape}) > 1 for shape in shapes)


def leaves_one_idle(draft: Draft) -> bool:
    return len(draft.parts) == 1 and sum(post.tensor for post in draft.all_posts) < DEVICES


def is_any(_: Draft) -> bool:
    return True


def drafted(folder: Path, setting: Setting, sharding: int, wanted: Callable[[Draft], bool]) -> Plan:
    """The fastest of the drafts of this sort for the setting's job."""
    folder.mkdir()
    job = replace(load_job_to_plan(write_job(folder, setting), ()), layout=None)
    stages = Stages(job, pools_of(job.cluster.members()), strategy_of(job), MODES)
    state = StateMode(sharding, False)
    made = member_drafts(Space(stages, (state,)), state)
    one_by_one = (draft for draft in made if {part.micro_batch for part in draft.parts} == {1})
    drafts = [draft for draft in one_by_one if wanted(draft)]
    best = min(drafts, key=lambda draft: draft.estimate_s)
    timed, _ = fastest_of(plans_of(job, stages.pools, best), best, inf)
    assert timed is not None and not timed.refusals
    return timed.plan


@pytest.mark.parametrize(
    ("wanted", "name", "sharding"),
    [
        (has_several_replicas, "ratrain", 1),
        (has_unlike_degrees, "ratrain", 1),
        (leaves_one_idle, "ratrain", 1),
        (is_any, "pe-zero", 3),
    ],
    ids=lambda what: getattr(what, "__name__", str(what)),
)
def test_what_the_planner_drafts_trains_as_one_process_does(
    wanted: Callable[[Draft], bool], name: str, sharding: int, six: Crew, tmp_path: Path
) -> None:
    setting = replace(PLANNED, name=name, devices_per_host=2, old=(0,))
    plan = drafted(tmp_path / "planned", setting, sharding, wanted)
    text = json.loads(write_plan(file_of_plan(plan)))
    ranks = len(plan.devices)
    planned = replace(
        setting, planned_ranks=ranks, idle=DEVICES - ranks, plan_text=json.dumps(text)
    )
    result = train(six, planned, tmp_path / "members")
    alone = replace(PLANNED, name="1f1b", planned=False, planned_ranks=0, devices_per_host=None)
    assert_as_alone(result, train(six, alone, tmp_path / "alone"))
    assert_held(result)
