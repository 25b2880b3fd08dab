"""Moves of whole plans: the search climbs by those that may, and `explain` lists them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_tier_plans import job_on
from test_unequal_sizes import begins, large_and_small

from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.plan.case.case import case_of
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.layout.plan import Plan
from ratrain.plan.price.trial import step_s_of
from ratrain.plan.search.every_plan import every_plan
from ratrain.plan.search.moves import MoveTried
from ratrain.plan.search.plan_moves import (
    PLAN_MOVES,
    PlanMove,
    declare_plan_move,
    improved,
    plan_moves_of,
)
from ratrain.plan.search.tried import Timed, timed_plan
from ratrain.plan.words.explain import moves_text
from ratrain.program.replicas import Recovery


def recomputing(**schedule: object) -> JobSpec:
    """On two devices with a host tier, every layer computed again unless it is asked otherwise."""
    job = job_on(64, host_gb=300, devices=2, **{"recovery": "everywhere", **schedule})
    return replace(job, layout=LayoutSpec(1, 2, 1))


def moves_of(plan: Plan) -> dict[str, MoveTried]:
    step_s = step_s_of(plan)
    assert step_s is not None
    return {move.name: move for move in plan_moves_of(plan, step_s)}


def test_activations_that_a_move_spills_take_the_step_of_a_job_that_asks_for_it() -> None:
    move = moves_of(case_of(recomputing()).plan)["spill"]
    assert move.drafts == 1 and move.best_s is not None
    asked = case_of(recomputing(recovery="spill", activation_tier="host")).plan
    assert set(asked.modes) == {Recovery.SPILL}
    assert move.best_s == pytest.approx(step_s_of(asked))


def test_nothing_is_moved_to_a_tier_that_a_job_says_itself() -> None:
    schedule = {"optimizer_tier": "host", "activation_tier": "device"}
    moves = moves_of(case_of(recomputing(**schedule)).plan)
    assert moves["tiers"].drafts == moves["spill"].drafts == 0


def test_a_tier_gives_the_room_that_keeping_all_takes() -> None:
    tight = replace(job_on(40, host_gb=300, devices=2), layout=LayoutSpec(1, 2, 1))
    plan = case_of(replace(tight, batch=Batch(128, 4))).plan
    assert any(mode.again for mode in plan.modes), "memory is short"
    moves = moves_of(plan)
    assert moves["tiers"].best_s is not None
    assert moves["tiers"].best_s < moves["tiers"].step_s
    said = "\n".join(moves_text("One change:", list(moves.values())))
    assert "tiers: states in another memory tier" in said


@pytest.mark.slow
def test_a_plan_move_of_one_s_own_is_climbed_by_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = every_plan(load_job(large_and_small(tmp_path))).best
    assert isinstance(best, Timed)
    (replica,) = best.plan.replicas
    assert len(set(replica.sizes)) > 1
    alike = replica.computing((min(replica.sizes),) * replica.ranks)
    start, _ = timed_plan(best.draft, replace(best.plan, replicas=(alike,)), float("inf"))
    assert start is not None

    def in_best_sizes(plan: Plan) -> Iterator[Plan]:
        yield replace(plan, replicas=(plan.replicas[0].computing(replica.sizes),))

    monkeypatch.setattr(PLAN_MOVES, "_known", {})
    assert not list(improved(start, begins))
    declare_plan_move("mine", PlanMove("the best sizes at once", in_best_sizes))
    assert [plan.step_s for plan in improved(start, begins)] == pytest.approx([best.step_s])
