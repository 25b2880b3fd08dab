"""What each rank of a tensor group sends to the next stage, with a kernel model and without."""

from __future__ import annotations

from dataclasses import replace

import pytest
from random_jobs import job

from ratrain.cost.collectives import message, ring_half
from ratrain.describe.backends import backend_named
from ratrain.describe.job import LayoutSpec
from ratrain.errors import SpecError
from ratrain.plan.case.case import Case, case_of
from ratrain.program.kind import Kind

SIZE_BYTES = 2 * 512 * 6144  # a micro-batch of one sequence of gpt-22b


def in_groups(
    backend: str = "described",
    *,
    kernels: bool = False,
    says_whole: bool = False,
    divided: bool = False,
) -> Case:
    """Two stages of eight ranks, on hosts with a kernel model or with one rate for all products."""
    spec = job("gpt-22b", "a100-80g-dgx", 16, 16, schedule="1f1b")
    kind = spec.cluster.spec.device[0]
    assert kind.kernels is not None
    model = replace(kind.kernels, whole_sends=says_whole, blocking_sends=False) if kernels else None
    cluster = replace(spec.cluster.spec, device=(replace(kind, kernels=model),))
    schedule = replace(spec.schedule, backend=backend, sequence_parallel=divided)
    layout = LayoutSpec(2, 1, 8, sequence_parallel=divided)
    asked = replace(spec, cluster=replace(spec.cluster, spec=cluster), schedule=schedule)
    return case_of(replace(asked, layout=layout))


def sent(case: Case) -> tuple[float, float]:
    """Fixed seconds and bytes of the first stage's message."""
    work, last = case.costs.work[Kind.SEND_F], len(case.setup.replicas[0].stages[0].only.units) - 1
    return work.fixed_s[last], work.volume_bytes[last]


@pytest.mark.parametrize("kernels", [False, True])
def test_each_rank_sends_its_part_and_the_receivers_gather_it(kernels: bool) -> None:
    case = in_groups(kernels=kernels)
    link, inside = case.plan.placement.links.stage(0, 1, (0,)), case.plan.placement.links.tensor[1]
    gather_s = ring_half(SIZE_BYTES, 8, inside).alone_s(inside.bandwidth_bytes_per_s)
    part = message(SIZE_BYTES / 8, link)
    assert sent(case) == pytest.approx((part.latency_s + gather_s, SIZE_BYTES / 8))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(lambda: in_groups("described+whole_sends"), id="backend"),
        pytest.param(lambda: in_groups(kernels=True, says_whole=True), id="kernel model"),
        pytest.param(lambda: in_groups("torch"), id="torch, which does"),
        pytest.param(lambda: in_groups("torch", kernels=True), id="torch, with a kernel model"),
    ],
)
def test_software_that_sends_whole_tensors_sends_all_and_gathers_nothing(case) -> None:
    made = case()
    link = made.plan.placement.links.stage(0, 1, (0,))
    assert sent(made) == (message(SIZE_BYTES, link).latency_s, SIZE_BYTES)


@pytest.mark.parametrize("backend", ["described", "described+whole_sends", "torch"])
def test_a_divided_sequence_leaves_in_parts_that_stay_parts(backend: str) -> None:
    case = in_groups(backend, divided=True)
    link = case.plan.placement.links.stage(0, 1, (0,))
    assert sent(case) == (message(SIZE_BYTES / 8, link).latency_s, SIZE_BYTES / 8)


def test_a_message_in_parts_is_never_slower_than_one_that_is_whole() -> None:
    parts, whole = in_groups(), in_groups("described+whole_sends")
    rate = parts.plan.placement.links.stage(0, 1, (0,)).bandwidth_bytes_per_s
    (part_s, part_bytes), (whole_s, whole_bytes) = sent(parts), sent(whole)
    assert part_s + part_bytes / rate < whole_s + whole_bytes / rate


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("described+whole_send", 'did you mean "whole_sends"'),
        ("torch+whole_sends", "torch is no description"),
        ("describe", "unknown backend 'describe'"),
    ],
)
def test_a_property_that_no_description_has_is_refused(name: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        backend_named(name)
