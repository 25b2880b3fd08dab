"""What devices that move bytes by themselves lose of their compute, in plans and on the clocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from random_jobs import job
from test_estimate import check, gap, groups_of
from test_left_out import job_file
from test_unequal_clock import gaps, stages_of, unequal_job

from ratrain.describe.device import BY_OTHERS, Driving
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.search.every_plan import every_plan
from ratrain.program.kind import Kind
from ratrain.simulate.simulate import simulate

HALF = Driving(2e-4, 4e-10, 2.0)
"""As of half a processor: 0.2 ms and 0.4 ns a byte, during which compute stands still twice as
long."""


def driving(spec: JobSpec, *kinds: Driving) -> JobSpec:
    """The job on the same devices, which move bytes so: each kind by its own, or all alike."""
    cluster = spec.cluster.spec
    of_each = kinds if len(kinds) > 1 else kinds * len(cluster.device)
    devices = tuple(
        replace(kind, driving=own) for kind, own in zip(cluster.device, of_each, strict=True)
    )
    return replace(spec, cluster=replace(spec.cluster, spec=replace(cluster, device=devices)))


def laid_out(layout: LayoutSpec) -> JobSpec:
    return replace(job("tiny-llama", "cpu-lab", layout.devices, 8, 64), layout=layout)


def step_s(case: Case) -> float:
    return simulate(case.program, case.costs).step_time_s


def test_both_ends_of_a_message_lose_compute_for_it_and_for_its_bytes() -> None:
    case = case_of(driving(laid_out(LayoutSpec(2)), HALF))
    work = case.costs.work
    sent_bytes = work[Kind.SEND_F].volume_bytes.max()
    lost_s = 2.0 * (2e-4 + 4e-10 * sent_bytes)
    for kind in (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B):
        assert work[kind].interrupt_s.max() == pytest.approx(lost_s), kind


def test_a_reduction_takes_more_than_a_gather_of_as_many_bytes() -> None:
    case = case_of(driving(laid_out(LayoutSpec(1, 2)), HALF))
    reduced, gathered = case.costs.work[Kind.GradSync], case.costs.work[Kind.PrefetchW]
    assert (reduced.volume_bytes == gathered.volume_bytes).all()
    assert (gathered.interrupt_s == 2 * 2.0 * (2e-4 + 4e-10 * gathered.volume_bytes)).all()
    assert (reduced.interrupt_s > gathered.interrupt_s).all()


def test_an_update_beside_compute_takes_no_more_than_itself() -> None:
    case = case_of(driving(laid_out(LayoutSpec(1, 2)), HALF))
    update = case.costs.work[Kind.UpdateShard]
    rate = case.costs.link_rate_bytes_per_s[update.link]
    assert update.interrupt_s == pytest.approx(update.fixed_s + update.volume_bytes / rate)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [LayoutSpec(2), LayoutSpec(1, 2), LayoutSpec(2, 2)], ids=str)
def test_a_step_takes_longer_where_its_devices_move_bytes_by_themselves(
    layout: LayoutSpec,
) -> None:
    spec = laid_out(layout)
    assert step_s(case_of(driving(spec, HALF))) > step_s(case_of(spec))
    assert step_s(case_of(driving(spec, BY_OTHERS))) == step_s(case_of(spec))


@pytest.mark.slow
def test_drafts_take_about_as_long_as_their_whole_programs(tmp_path: Path) -> None:
    kinds = Driving(1e-4, 4e-10, 1.0), HALF, replace(HALF, stall=4.0)
    off = gaps(stages_of(driving(unequal_job(tmp_path, sequences=8), *kinds)), 20, 4)
    assert fmean(off) < 0.015 and max(off) < 0.08, sorted(off)


def test_the_closed_form_counts_what_moving_bytes_takes() -> None:
    spec = driving(job("tiny-llama", "cpu-lab", 4, 16, 64), HALF)
    checked = [check(group) for group in groups_of(spec)]
    off = [gap(each.group, 0, each.recovery) for each in checked if each.fits[0]]
    assert len(off) > 10 and fmean(map(abs, off)) < 0.08, sorted(off)


@pytest.mark.slow
def test_fewer_devices_exchange_gradients_where_moving_bytes_costs_compute(
    tmp_path: Path,
) -> None:
    spec = load_job(job_file(tmp_path, sequences=24, fast=(40, 1), middle=(20, 1), slow=(10, 1)))
    losing = driving(spec, *(Driving(2e-4, 1e-9, stall) for stall in (1.0, 2.0, 4.0)))
    free, costly = every_plan(spec).best, every_plan(losing).best
    assert free is not None and costly is not None
    assert [len(plan.plan.replicas) for plan in (free, costly)] == [3, 2]
    assert free.step_s < costly.step_s
