"""In pipelines the planner tries ZB-H1, whose weight gradients fill the stages' waits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_jobs import job

from ratrain.cost.blocks import blocks
from ratrain.cost.compute import SPLIT_SHARE, block_times
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.presets import cluster_preset, model_preset
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.jobs import SPLIT_ORDERS, WORTH_SPLIT
from ratrain.plan.search.every_plan import with_order_open
from ratrain.plan.search.layouts import search_layouts
from ratrain.plan.search.other_devices import free_to_recover
from ratrain.plan.words.planned import search_text
from ratrain.program.kind import Kind
from ratrain.program.text import write_text
from ratrain.simulate.simulate import simulate

FOUR = LayoutSpec(4)


def asked(
    layout: LayoutSpec, sequences: int = 8, budget_bytes: int | None = None, **options: Any
) -> JobSpec:
    """A small model in a pipeline over a slow link, in micro-batches of one sequence."""
    spec = job("tiny-llama", "cpu-lab", layout.devices, sequences * layout.data, 64, budget_bytes)
    return replace(spec, layout=layout, schedule=replace(spec.schedule, **options))


def predicted_s(case: Case) -> float:
    return simulate(case.program, case.costs).step_time_s


def peak_bytes(case: Case) -> int:
    return max(bound.total_bytes for bound in case.proved.verdict.bounds)


@pytest.mark.parametrize("layout", [FOUR, LayoutSpec(3), LayoutSpec(2)], ids=str)
def test_a_short_step_in_a_pipeline_fills_its_waits_with_weight_gradients(
    layout: LayoutSpec,
) -> None:
    case = case_of(asked(layout))
    usual = case_of(asked(layout, skeleton="1f1b"))
    assert case.strategy.skeleton == "zb-h1"
    assert case.proved.verdict.sound
    assert predicted_s(case) <= (1 - WORTH_SPLIT) * predicted_s(usual)
    assert case.facts()["order"] == "zb-h1"
    assert any(line.startswith("order zb-h1: ") for line in case.headline())


@pytest.mark.parametrize(
    ("layout", "sequences"),
    [(LayoutSpec(2), 96), (LayoutSpec(2, 2), 8)],
    ids=["waits hardly count", "reductions count more"],
)
def test_a_step_that_gains_little_or_nothing_by_it_keeps_1f1b(
    layout: LayoutSpec, sequences: int
) -> None:
    case = case_of(asked(layout, sequences))
    split = case_of(asked(layout, sequences, skeleton="zb-h1"))
    assert case.strategy.skeleton == "1f1b"
    assert predicted_s(split) > (1 - WORTH_SPLIT) * predicted_s(case)


def test_the_order_is_taken_where_memory_for_it_is_proved_and_not_below() -> None:
    split, usual = case_of(asked(FOUR)), case_of(asked(FOUR, skeleton="1f1b"))
    assert peak_bytes(usual) < peak_bytes(split)
    for budget, order in ((peak_bytes(split), "zb-h1"), (peak_bytes(split) - 1, "1f1b")):
        case = case_of(asked(FOUR, budget_bytes=budget))
        assert case.strategy.skeleton == order
        assert case.proved.verdict.sound


@pytest.mark.parametrize(
    ("layout", "sequences", "options"),
    [
        (FOUR, 8, {"skeleton": "1f1b"}),
        (FOUR, 8, {"without": ("update-prefetch",)}),
        (FOUR, 8, {"name": "1f1b"}),
        (FOUR, 8, {"name": "baseline-1f1b"}),
        (FOUR, 8, {"name": "paper-backward-checkpoint"}),
        (FOUR, 8, {"recovery": "exempt-last"}),
        (FOUR, 1, {}),
        (LayoutSpec(1), 8, {}),
    ],
    ids=[
        "named",
        "no prefetch",
        "named by its schedule",
        "baseline",
        "as published",
        "recovers",
        "one micro-batch",
        "one rank",
    ],
)
def test_the_strategy_s_own_order_stays(
    layout: LayoutSpec, sequences: int, options: dict[str, Any]
) -> None:
    assert case_of(asked(layout, sequences, **options)).strategy.skeleton == "1f1b"


def test_a_search_tries_the_order_and_names_it_and_a_plan_file_keeps_it() -> None:
    spec = asked(FOUR)
    spec = replace(spec, layout=None, schedule=replace(spec.schedule, sharding=0))
    spec = replace(spec, batch=replace(spec.batch, sequences=9))  # four replicas share no nine
    result = search_layouts(spec)
    best = result.best
    assert best.plan.strategy.skeleton == "zb-h1"
    assert Case(best.plan).name.endswith(", order zb-h1")
    assert Case(best.plan).facts()["order"] == "zb-h1"
    assert sum("zb-h1" in line for line in search_text(result, 3)) >= 2
    text = write_plan(file_of_plan(best.plan))
    assert json.loads(text)["skeleton"] == "zb-h1"
    again = Case(plan_of_file(parse_plan(text, "plan.json"), "plan.json"))
    assert write_text(again.program) == write_text(Case(best.plan).program)
    assert predicted_s(again) == pytest.approx(best.step_s)


@pytest.mark.parametrize(
    ("model", "devices", "sequences", "tokens"),
    [("tiny-llama", 2, 8, 64), ("small-llama", 3, 3, 16)],
    ids=["whole models are the fastest four", "too slow with backward whole"],
)
def test_a_search_finds_the_pipeline_that_is_the_fastest_in_this_order_alone(
    model: str, devices: int, sequences: int, tokens: int
) -> None:
    spec = job(model, "cpu-lab", devices, sequences, tokens, None)
    spec = replace(spec, schedule=replace(spec.schedule, dtype="fp32"))
    by_hand = [
        case_of(replace(spec, layout=LayoutSpec(devices), batch=replace(spec.batch, micro_batch=n)))
        for n in (1, 2, 4)
        if sequences % n == 0
    ]
    assert search_layouts(spec).best.step_s <= min(map(predicted_s, by_hand)) * 1.001


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    """Pipelines with all that a job may combine with an order, and little memory or much."""
    tied = draw(st.booleans())
    layout = draw(st.sampled_from([LayoutSpec(2), LayoutSpec(3), FOUR, LayoutSpec(2, 2)]))
    sharding = draw(st.sampled_from([None, 0, 1, 2, 3]))
    local = tied or sharding in (0, 1) or layout.data == 1
    spec = asked(
        layout,
        draw(st.integers(1, 9)),
        draw(st.sampled_from([None, 20_000_000, 30_000_000])),
        backend="torch",
        dtype=draw(st.sampled_from(["fp32", "fp16"])),
        sharding=sharding,
        gradient_accumulation="local" if local else draw(st.sampled_from(["auto", "sharded"])),
        recovery=draw(st.sampled_from(["auto", "keep-all"])),
    )
    model = replace(spec.model, spec=replace(spec.model.spec, tied_embeddings=tied))
    return replace(
        spec,
        model=model,
        train=replace(spec.train, clip_norm=draw(st.sampled_from([None, 1.0]))),
    )


@pytest.mark.slow
@settings(max_examples=60)
@given(jobs())
def test_whatever_order_is_chosen_is_proved_and_earns_its_place(spec: JobSpec) -> None:
    case = case_of(spec)
    usual = case_of(replace(spec, schedule=replace(spec.schedule, skeleton="1f1b")))
    if case.strategy.skeleton == "1f1b":
        assert write_text(case.program) == write_text(usual.program)
        return
    assert case.strategy.skeleton in SPLIT_ORDERS
    assert case.proved.verdict.sound
    assert predicted_s(case) <= (1 - WORTH_SPLIT) * predicted_s(usual) * 1.005


def test_a_backward_in_two_halves_costs_more_than_in_one_where_that_was_measured() -> None:
    layer = blocks(model_preset("tiny-llama"))[1]
    device = cluster_preset("cpu-lab").device[0]
    times = block_times(layer, device, micro_batch=1, sequence=64, dtype="fp32")
    halves_s = times.input_gradient_s + times.later_s
    assert halves_s == pytest.approx((1 + SPLIT_SHARE) * times.backward_s + device.launch_s)
    timed_apart = cluster_preset("a100-80g-dgx").device[0]
    times = block_times(layer, timed_apart, micro_batch=1, sequence=64, dtype="bf16")
    assert times.input_gradient_s + times.later_s == times.backward_s


def test_the_simulator_charges_the_second_half_with_it() -> None:
    case = case_of(asked(FOUR, skeleton="zb-h1"))
    work = {kind: case.costs.work[kind].fixed_s for kind in (Kind.B, Kind.I, Kind.W)}
    assert (work[Kind.I] + work[Kind.W] > work[Kind.B]).all()


def test_what_a_plan_is_compared_with_may_take_any_order() -> None:
    """A plan file names the order that the planner chose, which is not one that was asked for."""
    split = asked(FOUR, skeleton="zb-h1", recovery="keep-all")
    opened = with_order_open(split)
    assert (opened.schedule.skeleton, opened.schedule.recovery) == (None, "auto")
    assert free_to_recover(opened).schedule.skeleton is None
    for kept in (
        asked(FOUR, skeleton="1f1b"),
        asked(FOUR, skeleton="gpipe"),
        asked(FOUR, skeleton="zb-h1", without=("update-prefetch",)),
        asked(FOUR, name="zb-h1"),
    ):
        assert with_order_open(kept) is kept
        order = kept.schedule.skeleton or "zb-h1"
        assert free_to_recover(kept).schedule.skeleton == order
