"""What plans of stages and replicas that differ cost: as layouts do where they are alike, and as
their own devices, degrees and shares say where they are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_jobs import candidates
from test_uneven_setup import hexiscale, read, replica, stage

from ratrain.cost.blocks import blocks
from ratrain.cost.compute import case_of_block
from ratrain.describe.cluster import Link
from ratrain.plan.case.case import Case
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.times import most_cells, regrouped_message
from ratrain.program.kind import Kind
from ratrain.simulate.costs import Costs
from ratrain.simulate.simulate import simulate

quick = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def same(these: Costs, other: Costs) -> bool:
    assert these.work.keys() == other.work.keys()
    columns = ("fixed_s", "volume_bytes", "interrupt_s", "link", "peer_link")
    return np.array_equal(these.link_rate_bytes_per_s, other.link_rate_bytes_per_s) and all(
        np.array_equal(getattr(these.work[kind], name), getattr(other.work[kind], name))
        for kind in these.work
        for name in columns
    )


def prices_alike(candidate: Plan) -> None:
    read_again = parse_plan(write_plan(file_of_plan(candidate)), "p.json")
    plan = plan_of_file(read_again, "p.json")
    job = replace(plan.job, model=candidate.job.model)  # no preset is tied
    regular, made = Case(candidate), Case(replace(plan, job=job))
    assert made.program == regular.program
    assert same(made.costs, regular.costs)
    first, second = (simulate(case.program, case.costs, steps=2) for case in (regular, made))
    assert first.step_time_s == second.step_time_s
    assert first.bound_bytes == second.bound_bytes


@pytest.mark.slow
@settings(quick, max_examples=40)
@given(candidates(("ratrain", "megatron", "interleaved", "zb-h1", "zero3-heavy"), cells=60))
def test_a_layout_costs_what_its_plan_file_costs(row) -> None:
    prices_alike(row[1])


@settings(quick, max_examples=10)
@given(candidates(cells=60, tied=True))
def test_a_layout_of_a_tied_model_does_too(row) -> None:
    prices_alike(row[1])


SLOW = Link(1e-3, 1e6, "test")


def test_a_boundary_between_degrees_sends_every_byte_once() -> None:
    kind = read(*hexiscale(), sequences=15).devices[0].kind
    for source in range(1, 9):
        for target in range(1, 9):
            sent = regrouped_message(8_000_000, SLOW, kind, (source, target), gathered_over=None)
            assert sent.volume_bytes * min(source, target) == pytest.approx(8e6)
            assert sent.latency_s == pytest.approx(most_cells(source, target) * SLOW.latency_s)
    assert most_cells(4, 4) == most_cells(1, 1) == 1
    assert (most_cells(2, 4), most_cells(4, 1), most_cells(2, 3), most_cells(3, 5)) == (2, 4, 2, 3)


def test_a_receiving_group_gathers_what_it_needs_whole() -> None:
    case = Case(read(*hexiscale(), sequences=15))
    kind = case.plan.devices[0].kind
    apart = regrouped_message(8_000_000, SLOW, kind, (1, 2), gathered_over=None)
    whole = regrouped_message(8_000_000, SLOW, kind, (1, 2), gathered_over=SLOW)
    assert whole.volume_bytes == apart.volume_bytes
    assert whole.latency_s - apart.latency_s == pytest.approx(1e-3 + 4.0)


def test_ranks_of_unequal_degrees_end_a_reduction_together() -> None:
    case = Case(read(*hexiscale(), sequences=15))
    work = case.costs.work[Kind.GradSync]
    names = [unit.name for member in case.setup.members for unit in member.units]
    rates = case.costs.link_rate_bytes_per_s
    for name in set(names):
        here = [place for place, other in enumerate(names) if other == name]
        times = work.fixed_s[here] + work.volume_bytes[here] / rates[work.link[here]]
        assert times == pytest.approx(times[0])
        assert times[0] > 0


def test_each_replica_computes_at_its_own_device_s_pace_and_micro_batch() -> None:
    case = Case(read(*hexiscale(), sequences=15))
    units = [(m.tensor, unit) for m in case.setup.members for unit in m.units]
    forward_s = case.costs.work[Kind.F].fixed_s
    fast, slow = (
        next(t for t, (degree, unit) in zip(forward_s, units, strict=True)
             if degree == 2 and unit.name == name)
        for name in ("7", "2")
    )  # fmt: skip
    # 38 times slower products, twice the sequences; launches and passes weigh in.
    assert 30 < slow / fast < 400


@pytest.mark.parametrize("other", [(), (replica(3, stage("0", 8)),)], ids=["layout", "unequal"])
def test_a_tensor_group_of_two_kinds_takes_as_long_as_its_slower_device(other) -> None:
    def forward_s(devices: str) -> float:
        head = {"sequences": 6 + 3 * len(other), "backend": "described"}
        case = Case(read(replica(6, stage(devices, 8, 2)), *other, **head))
        return float(case.costs.work[Kind.F].fixed_s[1])

    assert forward_s("7-8") == forward_s("8-9") > 2 * forward_s("6-7")


def test_more_sequences_for_the_faster_replica_make_a_shorter_step() -> None:
    def step_s(first: int, second: int) -> float:
        case = Case(
            read(
                replica(first, stage("0", 8)),
                replica(second, stage("8", 4), stage("9", 4)),
                sequences=first + second,
                model={"name": "small-llama", "sequence_length": 2048},
                cluster={"name": "mixed-sites", "devices": 12},
            )
        )
        return simulate(case.program, case.costs, steps=3).step_time_s

    assert step_s(380, 20) < step_s(200, 200)


def test_each_rank_takes_the_layer_times_measured_at_its_own_degree_and_micro_batch() -> None:
    def part(micro_batches: int, *stages: dict[str, Any]) -> dict[str, Any]:
        return replica(micro_batches, *({**described, "sharding": 0} for described in stages))

    case = Case(
        read(
            part(8, stage("0-1", 14, 2, micro_batch=2), stage("2", 10, 1, micro_batch=2)),
            part(2, stage("4-7", 24, 4, micro_batch=4)),
            sequences=24,
            model={"name": "opt-350m", "sequence_length": 2048},
            cluster={"name": "gh200-deepspeed", "devices": 8},
            dtype="fp32",
            schedule="megatron",
            prefetch=False,
        )
    )
    layer = blocks(case.job.model.spec)[1]
    measured_s = {
        (entry.tensor, time.micro_batch): time.forward_s
        for entry in case.plan.devices[0].kind.layer_profile
        if entry.case == case_of_block(layer, 2048, entry.tensor, "fp32")
        for time in entry.times
    }
    units = [(member.tensor, unit.name) for member in case.setup.members for unit in member.units]
    forward_s = case.costs.work[Kind.F].fixed_s
    sizes = [2] * 26 + [4] * 26  # with the embedding and the head
    for (tensor, name), size, time_s in zip(units, sizes, forward_s, strict=True):
        if name not in ("e", "h"):
            assert time_s == pytest.approx(measured_s[tensor, size])
    assert case.facts()["idle_devices"] == [3]
    assert "idle: 1 device, 3 (gh200-96g)" in case.headline()
