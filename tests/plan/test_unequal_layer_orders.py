"""Plans of unequal replicas are tried in layer-major orders, under the conditions of alike ones."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from test_left_out import job_file
from test_unequal_search import verb
from test_unequal_split import planned_with

from ratrain.describe.job import LayoutSpec
from ratrain.plan.case.case import Case
from ratrain.plan.file.form import parse_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.jobs import WORTH_MEMORY, load_job
from ratrain.plan.layout.plan import LAYER_MAJOR, Plan
from ratrain.plan.search.every_plan import EveryPlan, every_plan, with_order_open
from ratrain.plan.search.plan_moves import Reordered
from ratrain.plan.search.tried import Timed, timed_plan, timed_recovering
from ratrain.plan.words.planned import every_text
from ratrain.program.skeletons import SKELETONS, TOGETHER, layer_major_name
from ratrain.program.text import write_text
from ratrain.simulate.long import simulate_proved

PROFILE = """
[[device.layer_profile]]
shape = {{hidden = 128, ffn = 344, heads = 4, kv_heads = 2}}
sequence = 64
dtype = "fp32"
times = [
  {{micro_batch = 1, forward = "{forward_ms}ms", backward = "{backward_ms}ms"}},
  {{micro_batch = 2, forward = "{twice_ms}ms", backward = "{both_ms}ms"}},
]
source = "a test"
"""
"""A layer that takes longer for each sequence in larger micro-batches: a device of small caches."""


def measured(text: str, kind: str, forward_ms: int) -> str:
    """A cluster file in which a kind's layers were measured."""
    profile = PROFILE.format(
        forward_ms=forward_ms,
        backward_ms=2 * forward_ms,
        twice_ms=3 * forward_ms,
        both_ms=6 * forward_ms,
    )
    name = f'[[host]]\nname = "{kind}"'
    assert name in text
    return text.replace(name, f"{profile}\n{name}")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EveryPlan]:
    """Two devices, one twice as fast, on a link that takes as long as their arithmetic."""
    path = job_file(tmp_path_factory.mktemp("small"), 18, a=(20, 1), b=(40, 1))
    cluster = path.parent / "cluster.toml"
    text = cluster.read_text().replace("1Gbit/s", "200Mbit/s")
    cluster.write_text(measured(measured(text, "a", 10), "b", 5))
    return path, every_plan(load_job(path))


def best_of(plans: EveryPlan) -> Timed:
    assert isinstance(plans.best, Timed)
    return plans.best


def in_1f1b(plan: Plan) -> Plan:
    job = replace(plan.job, schedule=replace(plan.job.schedule, skeleton=None))
    return replace(plan, job=job, strategy=replace(plan.strategy, skeleton="1f1b"))


def simulated_s(plan: Plan) -> float:
    case = Case(plan)
    assert case.proved.verdict.sound
    return simulate_proved(case.proved, case.costs).step_time_s


def test_an_unequal_plan_goes_layer_by_layer_where_that_hides_more(
    small: tuple[Path, EveryPlan],
) -> None:
    plans = small[1]
    best = best_of(plans)
    assert SKELETONS[best.plan.strategy.skeleton].together > 1 and not best.refusals
    assert len(best.plan.replicas) == 2, "shares differ"
    assert simulated_s(best.plan) == pytest.approx(best.step_s, rel=1e-12)
    assert best.step_s < 0.95 * simulated_s(in_1f1b(best.plan))
    assert plans.alike is not None and best.step_s < plans.alike.best.step_s


def test_plan_says_so_and_its_file_is_simulated_alike_bit_for_bit(
    small: tuple[Path, EveryPlan],
) -> None:
    path, plans = small
    best, lines = best_of(plans), every_text(plans, 3)
    order = best.plan.strategy.skeleton
    assert any(line.startswith(f"order {order}: ") for line in lines[:5])
    assert any(line.startswith("the fastest plan in 1F1B takes") for line in lines)
    file = path.parent / "plan.json"
    first = verb("plan", str(path), "-o", str(file))["unequal"]["trainable"][0]
    assert first["plan"]["order"] == json.loads(file.read_text())["skeleton"] == order
    assert first["step_time_s"] == best.step_s
    assert verb("simulate", str(file))["step_time_s"] == simulated_s(best.plan)
    verb("verify", str(file))
    again = plan_of_file(parse_plan(file.read_text(), str(file)), str(file))
    assert write_text(Case(again).program) == write_text(Case(best.plan).program)


@pytest.mark.parametrize("line", ['skeleton = "1f1b"', 'without = ["update-prefetch"]'])
def test_a_job_that_does_not_leave_its_order_open_keeps_it(
    line: str, small: tuple[Path, EveryPlan], tmp_path: Path
) -> None:
    plans = planned_with(line, small[0], tmp_path)
    assert plans.unequal is not None
    assert all(plan.plan.strategy.skeleton == "1f1b" for plan in plans.unequal.trainable)


def test_plans_that_have_nothing_to_take_together_are_not_tried(
    small: tuple[Path, EveryPlan],
) -> None:
    plan = in_1f1b(best_of(small[1]).plan)
    most = max(replica.micro_batches for replica in plan.replicas)
    assert LAYER_MAJOR.names(plan) == tuple(layer_major_name(n) for n in TOGETHER if n < 2 * most)
    ones = tuple(replace(replica, micro_batches=1) for replica in plan.replicas)
    alone = plan.replicas[:1]
    deep = tuple(replace(replica, layout=LayoutSpec(2)) for replica in plan.replicas)
    joined = tuple(replace(replica, joined=(2,)) for replica in plan.replicas)
    long = tuple(replace(replica, micro_batches=9_999) for replica in plan.replicas)
    for replicas in (ones, alone, deep, joined, long):
        assert not LAYER_MAJOR.names(replace(plan, replicas=replicas))
    mixed = (plan.replicas[0], deep[1])
    assert LAYER_MAJOR.names(replace(plan, replicas=mixed)), "a rank holds the whole model"


def in_layer_orders(start: Timed, known_s: float) -> list[Timed]:
    search = Reordered(start.plan.job, (), lambda _: (), lambda: None, climbs=False)
    return list(search.of(LAYER_MAJOR, [start], known_s))


def within(plan: Plan, budget_bytes: int, **options: Any) -> Plan:
    schedule = replace(plan.job.schedule, memory_budget_bytes=budget_bytes, **options)
    return replace(plan, job=replace(plan.job, schedule=schedule))


def test_it_takes_as_many_together_as_are_proved_to_fit(small: tuple[Path, EveryPlan]) -> None:
    best = best_of(small[1])
    usual, _ = timed_plan(best.draft, in_1f1b(best.plan), inf)
    assert usual is not None and usual.bound_bytes < best.bound_bytes
    chosen: list[int] = []
    for budget in (usual.bound_bytes, best.bound_bytes - 1, best.bound_bytes):
        start = replace(usual, plan=within(usual.plan, budget, recovery="keep-all"))
        tried = in_layer_orders(start, usual.step_s)
        assert all(plan.bound_bytes <= budget for plan in tried)
        chosen.append(max((SKELETONS[p.plan.strategy.skeleton].together for p in tried), default=1))
    assert chosen[0] == 1 and chosen[1] < chosen[2]


def test_where_memory_is_short_for_an_order_its_stages_recover_if_they_may(
    small: tuple[Path, EveryPlan],
) -> None:
    best = best_of(small[1])
    budget = best.bound_bytes - 1
    plan = within(best.plan, budget, recovery="auto")
    timed = timed_recovering(best.draft, plan, inf, proved_last=True)
    assert timed is not None and timed.bound_bytes <= budget
    assert timed.plan.strategy.skeleton == best.plan.strategy.skeleton
    assert any(mode.again for replica in timed.plan.replicas for mode in replica.recovery)
    kept = within(best.plan, budget, recovery="keep-all")
    assert timed_recovering(best.draft, kept, inf) is None


def test_one_that_gains_too_little_is_not_taken(small: tuple[Path, EveryPlan]) -> None:
    best = best_of(small[1])
    start, _ = timed_plan(best.draft, in_1f1b(best.plan), inf)
    assert start is not None
    worth_it_s = best.step_s / (1 - WORTH_MEMORY)
    assert in_layer_orders(start, worth_it_s * 1.0001)
    assert not in_layer_orders(start, worth_it_s * 0.999)


def test_what_the_plan_is_compared_with_may_take_any_order(small: tuple[Path, EveryPlan]) -> None:
    assert with_order_open(best_of(small[1]).plan.job).schedule.skeleton is None
