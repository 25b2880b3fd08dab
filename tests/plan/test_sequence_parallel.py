"""Sequence parallelism: what it divides, that plans with it are proved, and where it is refused."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from random_jobs import SKELETONS, candidates, job
from test_bill import RATRAIN, Row, check_close, check_never_below, long, quick
from test_estimate import gap

from ratrain.cost.blocks import BlockKind
from ratrain.cost.collectives import ring_all_reduce, ring_half
from ratrain.describe.backends import BACKENDS, declare_backend
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.job_checks import check_job
from ratrain.errors import SpecError
from ratrain.plan.case.case import case_of
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.enumerate import Group, groups_of, kinds_of_block
from ratrain.plan.layout.sizes import boundary_bytes
from ratrain.plan.layout.times import gathered_again_s, inner_sums_s, sums_of_op, times_in_layout
from ratrain.plan.price.bill import bill_of
from ratrain.plan.search.layouts import check, search_layouts
from ratrain.program.text import read_text, write_text
from ratrain.simulate.simulate import simulate

LLAMA = job("llama-2-7b", "a100-80g-dgx", 8, 32, 1024)


def asked(spec: JobSpec, divided: bool | None) -> JobSpec:
    return replace(spec, schedule=replace(spec.schedule, sequence_parallel=divided))


def pairs_of_groups() -> list[tuple[Group, Group]]:
    """The same group without sequence parallelism and with."""
    groups: dict[object, list[Group]] = {}
    for group in groups_of(LLAMA):
        plain = replace(group.layout, sequence_parallel=False)
        key = plain, group.micro_batches, group.strategy.skeleton
        groups.setdefault(key, []).append(group)
    return [(two[0], two[1]) for two in groups.values() if len(two) == 2]


@pytest.mark.slow
@quick
@given(candidates(RATRAIN + SKELETONS, divided=True))
def test_the_bill_is_never_below_the_proof_with_divided_sequences(row: Row) -> None:
    check_never_below(row)


@quick
@given(candidates(RATRAIN, divided=True))
def test_the_bill_is_at_most_two_percent_above_the_proof_with_divided_sequences(row: Row) -> None:
    check_close(row)


@pytest.mark.slow
@long
@given(candidates(RATRAIN + SKELETONS, divided=True))
def test_the_bill_is_never_below_on_many_plans_with_divided_sequences(row: Row) -> None:
    check_never_below(row)


def test_inputs_are_divided_by_the_tensor_degree_and_states_are_not_touched() -> None:
    for plain, divided in pairs_of_groups():
        recovery = np.zeros(plain.layers.shape, dtype=np.int64)
        before = bill_of(plain, recovery).items
        after = bill_of(divided.only(np.arange(len(plain))), np.zeros_like(divided.layers)).items
        if np.array_equal(plain.layers, divided.layers):
            assert np.array_equal(before["input"], after["input"] * plain.layout.tensor)
            assert np.array_equal(before["sums"], after["sums"])  # parts of sums are whole
            for name in ("view", "optimizer"):
                assert np.array_equal(before[name], after[name])
        assert plain.units[1].saved_bytes > divided.units[1].saved_bytes


def test_the_closed_form_agrees_with_the_simulator_on_divided_sequences() -> None:
    gaps: list[float] = []
    for _, divided in pairs_of_groups():
        checked = check(divided)
        rows = np.flatnonzero(checked.fits)
        if len(rows) and divided.micro_batches * divided.layout.stages <= 200:
            gaps.append(gap(checked.group, int(rows[0]), checked.recovery))
    assert len(gaps) > 10
    assert np.abs(gaps).mean() < 0.03


@pytest.mark.slow
def test_a_search_with_both_is_no_slower_than_with_either() -> None:
    steps = {
        choice: search_layouts(asked(LLAMA, choice)).best.step_s for choice in (None, False, True)
    }
    assert steps[None] <= min(steps[False], steps[True])
    for choice in (False, True):
        layouts = [group.layout for group in groups_of(asked(LLAMA, choice))]
        assert {layout.sequence_parallel for layout in layouts} == {choice}


def test_a_plan_with_divided_sequences_is_read_back_and_simulates_as_said() -> None:
    best = search_layouts(asked(LLAMA, True)).best
    text = write_plan(file_of_plan(best.plan))
    again = plan_of_file(parse_plan(text, "p.json"), "p.json")
    assert again.layout == best.plan.layout
    case = case_of(replace(again.job, layout=again.layout))
    assert case.program.setup.sequence_parallel
    assert read_text(write_text(case.program)) == case.program
    assert simulate(case.program, case.costs).feasible


def test_a_plan_file_without_the_field_has_whole_sequences() -> None:
    table = json.loads(write_plan(file_of_plan(search_layouts(asked(LLAMA, True)).best.plan)))
    del table["sequence_parallel"]
    candidate = plan_of_file(parse_plan(json.dumps(table), "p.json"), "p.json")
    assert candidate.layout.tensor > 1
    assert not candidate.layout.sequence_parallel


def test_offload_has_a_place_in_the_plan_and_is_refused_by_name() -> None:
    table: dict[str, Any] = json.loads(write_plan(file_of_plan(search_layouts(LLAMA).best.plan)))
    table["replicas"][0]["stages"][-1]["offload"] = "host"
    with pytest.raises(SpecError, match="cannot run yet"):
        plan_of_file(parse_plan(json.dumps(table), "p.json"), "p.json")


@pytest.fixture
def undivided() -> Generator[str]:
    """A backend that cannot divide sequences."""
    torch = BACKENDS["torch"]
    declare_backend(replace(torch, name="undivided", divides_sequences=False))
    yield "undivided"
    del BACKENDS["undivided"]


def test_a_backend_without_sequence_parallelism_never_divides_sequences(undivided: str) -> None:
    trained = job("llama-2-7b", "a100-80g-dgx", 8, 32, 1024, backend=undivided)
    assert not any(group.layout.sequence_parallel for group in groups_of(trained))
    with pytest.raises(SpecError, match="backend undivided has no sequence parallelism"):
        list(groups_of(asked(trained, True)))


@pytest.mark.parametrize(("kind", "halves"), [("embedding", 1), ("layer", 8), ("head", 2)])
def test_every_half_of_a_sum_that_a_job_trains_with_has_its_time(
    kind: BlockKind, halves: int
) -> None:
    """Those of ops of their own, one each way, and those that compute waits for."""
    trained = job("llama-2-7b", "a100-80g-dgx", 8, 32, 1024, backend="torch")
    group = next(g for g in groups_of(trained) if g.layout.sequence_parallel)
    link = group.placement.links.tensor[0]
    boundary = boundary_bytes(group.job)
    half = ring_half(boundary, group.layout.tensor, link)
    of_op = sums_of_op(group.job, kind, boundary, group.layout, link)
    assert of_op == half
    inner = inner_sums_s(group.job, kind, boundary, group.layout, link)
    half_s = half.alone_s(link.bandwidth_bytes_per_s)
    assert sum(inner) == pytest.approx(halves * half_s)


@pytest.mark.parametrize(("kind", "halves"), [("embedding", 0), ("layer", 4), ("head", 1)])
def test_weight_gradients_by_themselves_gather_their_rows_again(
    kind: BlockKind, halves: int
) -> None:
    """As many as tests/models/test_division.py counts; none where they follow at once."""
    trained = job("llama-2-7b", "a100-80g-dgx", 8, 32, 1024, backend="torch")
    group = next(g for g in groups_of(trained) if g.layout.sequence_parallel)
    link, boundary = group.placement.links.tensor[0], boundary_bytes(group.job)
    half_s = ring_half(boundary, group.layout.tensor, link).alone_s(link.bandwidth_bytes_per_s)
    again_s = gathered_again_s(group.job, kind, boundary, group.layout, link)
    assert again_s == pytest.approx(halves * half_s)
    whole = replace(group.layout, sequence_parallel=False)
    assert gathered_again_s(group.job, kind, boundary, whole, link) == 0.0
    block = kinds_of_block(group.job)[("embedding", "layer", "head").index(kind)]
    times, in_whole = (
        times_in_layout(group.job, layout, block, group.placement.devices[0].kind, link)
        for layout in (group.layout, whole)
    )
    assert times.split_s - in_whole.split_s == pytest.approx(again_s, abs=1e-9)


def test_a_layer_with_experts_waits_for_its_router_too() -> None:
    """Logits of all experts are gathered, gradients of the chosen ones' weights are summed."""
    trained = job("qwen3-30b-a3b", "a100-80g-dgx", 8, 32, 1024, backend="torch")
    group = next(g for g in groups_of(trained) if g.layout.tensor > 1)
    link, job_of_group = group.placement.links.tensor[0], group.job
    dense = replace(trained.model, spec=replace(trained.model.spec, experts=None))
    boundary, tokens = boundary_bytes(job_of_group), job_of_group.batch.micro_batch * 1024
    waits, without = (
        inner_sums_s(each, "layer", boundary, group.layout, link)
        for each in (job_of_group, replace(job_of_group, model=dense))
    )
    degree, rate = group.layout.tensor, link.bandwidth_bytes_per_s
    logits = ring_half(2 * tokens * 128, degree, link).alone_s(rate)
    choices = ring_all_reduce(4 * tokens * 8, degree, link).alone_s(rate)
    assert waits == pytest.approx((without[0] + logits, without[1] + choices))


@pytest.mark.parametrize(
    ("layout", "length"),
    [(LayoutSpec(8, sequence_parallel=True), 1024), (LayoutSpec(1, 1, 8), 1024)],
)
def test_a_layout_that_cannot_divide_or_contradicts_the_schedule_is_refused(
    layout: LayoutSpec, length: int
) -> None:
    spec = job("llama-2-7b", "a100-80g-dgx", 8, 32, length)
    spec = spec if layout.sequence_parallel else asked(spec, True)
    with pytest.raises(SpecError, match="sequence"):
        check_job(replace(spec, layout=layout))


def test_tokens_that_do_not_divide_among_a_group_are_refused_and_never_searched() -> None:
    odd = job("llama-2-7b", "a100-80g-dgx", 8, 32, 1023)
    with pytest.raises(SpecError, match="1023 tokens"):
        check_job(replace(odd, layout=LayoutSpec(1, 1, 8, sequence_parallel=True)))
    assert not any(group.layout.sequence_parallel for group in groups_of(odd))
    with pytest.raises(SpecError, match="no tensor degree"):
        list(groups_of(asked(odd, True)))
