"""Plans of unequal stages and replicas are tried in ZB-H1, under the conditions of alike ones."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

import pytest
from test_left_out import job_file
from test_unequal_search import verb

from ratrain.errors import Infeasible
from ratrain.plan.case.case import Case
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.jobs import SPLIT_ORDERS, WORTH_SPLIT, load_job
from ratrain.plan.layout.plan import SPLIT, Plan
from ratrain.plan.search.every_plan import EveryPlan, every_plan
from ratrain.plan.search.plan_moves import Reordered
from ratrain.plan.search.tried import Timed, timed_plan
from ratrain.plan.words.planned import every_text
from ratrain.program.replicas import Recovery
from ratrain.program.text import write_text
from ratrain.simulate.long import simulate_proved


def written(folder: Path, sequences: int, room: str, link: str, **kinds: tuple[int, int]) -> Path:
    """A job on kinds of device with so much memory each."""
    path = job_file(folder, sequences, **kinds)
    cluster = folder / "cluster.toml"
    cluster.write_text(cluster.read_text().replace("2GB", room).replace("1Gbit/s", link))
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EveryPlan]:
    """Two devices on a slow link, too small for the whole model and its micro-batches."""
    path = written(tmp_path_factory.mktemp("small"), 6, "16MB", "100Mbit/s", a=(30, 1), b=(40, 1))
    return path, every_plan(load_job(path))


def best_of(plans: EveryPlan) -> Timed:
    assert isinstance(plans.best, Timed)
    return plans.best


def in_1f1b(plan: Plan) -> Plan:
    schedule = replace(plan.job.schedule, skeleton=None, recovery="auto")
    job = replace(plan.job, schedule=schedule)
    return replace(plan, job=job, strategy=replace(plan.strategy, skeleton="1f1b"))


def simulated_s(plan: Plan) -> float:
    case = Case(plan)
    assert case.proved.verdict.sound
    return simulate_proved(case.proved, case.costs).step_time_s


def test_an_unequal_plan_takes_zb_h1_where_it_is_fast_enough(small: tuple[Path, EveryPlan]) -> None:
    plans = small[1]
    best = best_of(plans)
    assert best.plan.strategy.skeleton == "zb-h1" and not best.refusals
    assert simulated_s(best.plan) == pytest.approx(best.step_s)
    assert simulated_s(in_1f1b(best.plan)) > best.step_s
    assert plans.alike is not None and plans.unequal is not None
    assert best.step_s < plans.alike.best.step_s
    assert best.step_s <= (1 - WORTH_SPLIT) * plans.unequal.whole_s
    modes = {mode for replica in best.plan.replicas for mode in replica.recovery}
    assert modes == {Recovery.NONE}


@pytest.mark.slow
def test_plan_says_so_and_its_file_is_simulated_alike(small: tuple[Path, EveryPlan]) -> None:
    path, plans = small
    lines = every_text(plans, 3)
    assert any(line.startswith("order zb-h1: ") for line in lines[:4])
    assert any("the fastest plan whose backward is not split takes" in line for line in lines)
    file = path.parent / "plan.json"
    body = verb("plan", str(path), "-o", str(file))
    first = body["unequal"]["trainable"][0]
    assert first["plan"]["order"] == json.loads(file.read_text())["skeleton"] == "zb-h1"
    assert verb("simulate", str(file))["step_time_s"] == pytest.approx(first["step_time_s"])
    verb("verify", str(file))
    again = plan_of_file(parse_plan(file.read_text(), str(file)), str(file))
    best = best_of(plans)
    assert write_text(Case(again).program) == write_text(Case(best.plan).program)


def planned_with(line: str, job: Path, folder: Path) -> EveryPlan:
    """The plans of a job with one more line at its end, written into a folder."""
    path = folder / "job.toml"
    path.write_text(job.read_text() + line + "\n")
    (folder / "cluster.toml").write_text((job.parent / "cluster.toml").read_text())
    return every_plan(load_job(path))


@pytest.mark.parametrize(
    "line",
    ['skeleton = "1f1b"', 'without = ["update-prefetch"]', 'recovery = "everywhere"'],
)
def test_a_job_that_does_not_leave_its_order_open_keeps_it(
    line: str, small: tuple[Path, EveryPlan], tmp_path: Path
) -> None:
    plans = planned_with(line, small[0], tmp_path)
    assert plans.unequal is not None
    assert plans.unequal.trainable or plans.alike is not None
    assert all(plan.plan.strategy.skeleton == "1f1b" for plan in plans.unequal.trainable)


def in_split_orders(start: Timed, known_s: float) -> list[Timed]:
    search = Reordered(start.plan.job, (), lambda _: (), lambda: None, climbs=False)
    return list(search.of(SPLIT, [start], known_s))


def test_a_plan_that_recovers_or_has_no_waits_is_not_tried(
    small: tuple[Path, EveryPlan],
) -> None:
    plan = in_1f1b(best_of(small[1]).plan)
    (replica,) = plan.replicas
    assert SPLIT.names(plan)
    recovers = replace(replica, recovery=(Recovery.FORWARD, *replica.recovery[1:]))
    one = replace(replica, micro_batches=1, joined=())
    for other in (recovers, one):
        assert not SPLIT.names(replace(plan, replicas=(other,)))
    asked = replace(plan.job.schedule, skeleton="1f1b")
    assert not SPLIT.names(replace(plan, job=replace(plan.job, schedule=asked)))


def test_it_is_taken_where_memory_for_it_is_proved_and_not_below(
    small: tuple[Path, EveryPlan],
) -> None:
    best = best_of(small[1])
    usual = in_1f1b(best.plan)
    for budget, count in ((best.bound_bytes, 1), (best.bound_bytes - 1, 0)):
        schedule = replace(usual.job.schedule, memory_budget_bytes=budget)
        plan = replace(usual, job=replace(usual.job, schedule=schedule))
        start, _ = timed_plan(best.draft, plan, inf)
        assert start is not None, "1F1B holds less"
        tried = in_split_orders(start, start.step_s)
        assert len(tried) == count


def test_one_that_gains_too_little_is_not_taken(small: tuple[Path, EveryPlan]) -> None:
    best = best_of(small[1])
    start, _ = timed_plan(best.draft, in_1f1b(best.plan), inf)
    assert start is not None
    worth_it_s = best.step_s / (1 - WORTH_SPLIT)
    assert in_split_orders(start, worth_it_s * 1.0001)
    assert not in_split_orders(start, worth_it_s * 0.9999)


@pytest.mark.slow
def test_whatever_is_chosen_on_random_clusters_is_proved_and_earns_its_place(
    tmp_path: Path,
) -> None:
    split = 0
    for seed in range(16):
        rng = Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        kinds = {
            name: (rng.choice([10, 20, 30, 40, 60]), rng.choice([1, 1, 2]))
            for name in "abc"[: rng.choice([2, 3])]
        }
        room, link = rng.choice(["16MB", "25MB", "40MB"]), rng.choice(["100Mbit/s", "1Gbit/s"])
        path = written(folder, rng.choice([6, 8, 12]), room, link, **kinds)
        try:
            plans = every_plan(load_job(path))
        except Infeasible:
            continue
        if plans.unequal is None:
            continue
        for plan in plans.unequal.trainable[:3]:
            text = write_plan(file_of_plan(plan.plan))
            again = plan_of_file(parse_plan(text, str(folder / "p.json")), str(folder / "p.json"))
            assert simulated_s(again) == pytest.approx(plan.step_s), seed
            if plan.plan.strategy.skeleton in SPLIT_ORDERS:
                split += 1
                assert plan.step_s <= (1 - WORTH_SPLIT) * plans.unequal.whole_s, seed
                assert simulated_s(in_1f1b(plan.plan)) > plan.step_s, seed
    assert split > 4, "too few to say anything"
