"""No step of a job is shorter than its bound: whatever its replicas, its order and its passes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from random_plans import random_plan

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.strict import FrozenMap
from ratrain.errors import SpecError
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.file.form import parse_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.orders.board import Board
from ratrain.plan.orders.search import Moves, critical_pieces
from ratrain.simulate.simulate import simulate

JOB = Path(__file__).parents[2] / "examples" / "small.toml"
STEADY = 1e-6


def on_a_slow_link(job: JobSpec, rate_bytes_per_s: float) -> JobSpec:
    room = job.cluster.spec.links["room"]
    links = FrozenMap({"room": replace(room, bandwidth_bytes_per_s=rate_bytes_per_s)})
    return replace(job, cluster=replace(job.cluster, spec=replace(job.cluster.spec, links=links)))


@pytest.mark.slow
def test_no_steady_step_of_random_plans_whose_replicas_differ_is_shorter_than_the_bound() -> None:
    bounded = 0
    for seed in range(60):
        try:
            plan = plan_of_file(
                parse_plan(json.dumps(random_plan(Random(seed))), "p.json"), "p.json"
            )
        except SpecError:
            continue
        case = Case(plan)
        simulation = simulate(case.program, case.costs, steps=12, verdict=case.proved.verdict)
        assert simulation.bound is not None
        if simulation.window.steady:
            bounded += 1
            assert simulation.step_time_s >= simulation.bound.time_s * (1 - 1e-3), seed
    assert bounded > 20


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("layout", [LayoutSpec(4), LayoutSpec(2, data=2), LayoutSpec(1, data=4)])
def test_no_random_change_of_an_order_beats_the_bound(layout: LayoutSpec, split: bool) -> None:
    job = on_a_slow_link(load_job(JOB), 12e6)
    case = case_of(replace(job, layout=layout))
    board = Board(case, split=split)
    here = board.tried(board.first)
    assert here is not None
    moves = Moves(Random(7))
    critical = critical_pieces(board.clock, here.timed)
    orders, steps_s = here.orders, [here.step_s]
    for _ in range(300):
        orders = moves.changed(orders, critical, board.places) or orders
        tried = board.tried(orders)
        if tried is not None:
            steps_s.append(tried.step_s)
    assert min(steps_s) >= board.least_s * (1 - STEADY)
