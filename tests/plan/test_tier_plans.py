"""Optimizer states in other memory tiers: when the planner takes them, what they cost, and what
`ratrain fit` says beforehand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ratrain.describe.device import Tier
from ratrain.describe.job import Batch, ClusterChoice, JobSpec, ModelChoice, ScheduleSpec
from ratrain.describe.presets import cluster_preset, model_preset
from ratrain.errors import Infeasible, SpecError
from ratrain.plan.case.case import case_of_plan
from ratrain.plan.file.form import write_plan
from ratrain.plan.layout.enumerate import groups_of
from ratrain.plan.layout.tiers import require_tier
from ratrain.plan.price.fitted import fitted
from ratrain.plan.search.every_plan import every_plan
from ratrain.plan.search.fit import ways_of

GB = 1_000_000_000


def job_on(
    memory_gb: float,
    *,
    host_gb: float = 0,
    disk_gb: float = 0,
    disk_rate: float = 2e9,
    devices: int = 1,
    **schedule: Any,
) -> JobSpec:
    """Neo of 2.7 B parameters, whose AdamW alone takes 33 GB, on devices of so much memory."""
    spec = cluster_preset("a100-80g-dgx")
    kind = spec.device[0]
    tiers = [replace(kind.memory, capacity_bytes=int(memory_gb * GB))]
    tiers += [Tier("host", int(host_gb * GB), 25e9)] if host_gb else []
    tiers += [Tier("disk", int(disk_gb * GB), disk_rate)] if disk_gb else []
    spec = replace(spec, device=(replace(kind, tiers=tuple(tiers)),))
    return JobSpec(
        ModelChoice(model_preset("gpt-neo-2.7b"), 2048),
        ClusterChoice(spec, devices),
        Batch(8),
        None,
        replace(ScheduleSpec(dtype="bf16"), **schedule),
    )


@pytest.mark.parametrize(
    ("memory_gb", "host_gb", "disk_gb", "tier"),
    [(80, 64, 1000, None), (24, 64, 1000, "host"), (24, 0, 1000, "disk"), (24, 20, 1000, "disk")],
)
def test_the_optimizer_leaves_the_device_where_nothing_else_fits_for_the_fastest_tier_with_room(
    memory_gb: float, host_gb: float, disk_gb: float, tier: str | None
) -> None:
    plan = every_plan(job_on(memory_gb, host_gb=host_gb, disk_gb=disk_gb)).chosen.file()
    assert plan.optimizer_tier == tier


@pytest.mark.parametrize("tiers", [{}, {"host_gb": 20}, {"disk_gb": 20}])
def test_nothing_fits_where_no_tier_has_room(tiers: dict[str, Any]) -> None:
    with pytest.raises(Infeasible, match="the optimizer takes 33"):
        every_plan(job_on(24, **tiers))


def test_a_job_that_wants_it_on_the_device_keeps_it_there() -> None:
    with pytest.raises(Infeasible):
        every_plan(job_on(24, host_gb=64, optimizer_tier="device"))


def test_a_plan_that_has_it_on_disk_says_so_and_is_read_again_with_the_same_proof() -> None:
    found = every_plan(job_on(24, disk_gb=1000)).chosen
    assert '"optimizer_tier": "disk"' in write_plan(found.file())
    case = case_of_plan(found.file(), "plan")
    assert any("optimizer states wait on disk" in line for line in case.headline())
    (disk,) = [bound for bound in case.proved.verdict.lower_bounds if bound.tier == "disk"]
    assert 33 * GB < disk.total_bytes == disk.by_family["optimizer_disk"] < 34 * GB


def test_a_step_takes_at_least_what_its_bytes_take_on_the_disk_and_not_much_more() -> None:
    """33.4 GB each way at 2 GB/s, of which compute hides next to nothing; at 100 GB/s, all."""
    slow = every_plan(job_on(24, disk_gb=1000)).chosen.step_s
    assert 33.4 < slow < 33.4 * 1.02
    fast = every_plan(job_on(24, disk_gb=1000, disk_rate=100e9)).chosen.step_s
    on_device = every_plan(job_on(80)).chosen.step_s
    assert on_device < fast < 1.6 * on_device  # it computes activations again


def test_a_tier_that_is_asked_for_and_too_small_is_named() -> None:
    with pytest.raises(Infeasible, match=r"takes 33.4 GB on disk of a device, and .* has 20 GB"):
        every_plan(job_on(24, disk_gb=20, optimizer_tier="disk"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"average_every": 4, "dtype": "fp32"}, "average the optimizer's states too"),
        ({"dtypes": {"a100-80g-sxm": "fp32"}}, "devices compute in different dtypes"),
    ],
)
def test_what_needs_the_optimizer_on_the_device_is_refused(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(SpecError, match=why):
        require_tier(job_on(24, disk_gb=1000, optimizer_tier="disk", **options))


@pytest.mark.slow
def test_two_devices_share_what_waits_and_each_has_its_own_bytes() -> None:
    alone, shared = (ways_of(job_on(24, host_gb=64, devices=devices))[-1] for devices in (1, 2))
    assert shared.tier_bytes == pytest.approx(alone.tier_bytes / 2, rel=0.15)
    assert shared.best is not None and alone.best is not None
    assert shared.best.step_s < alone.best.step_s


@pytest.mark.parametrize(
    "way", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2, 3))]
)
def test_the_least_memory_that_fit_names_is_enough_and_a_tenth_less_is_not(way: int) -> None:
    found = ways_of(job_on(24, host_gb=64, disk_gb=1000))[way]
    least_gb = found.least_memory_bytes / GB
    again, less = (
        ways_of(job_on(gb, host_gb=64, disk_gb=1000))[way] for gb in (least_gb, 0.9 * least_gb)
    )
    assert again.best is not None and again.memory_bytes <= found.least_memory_bytes
    assert less.best is None


def test_the_largest_micro_batch_fits_and_twice_as_much_does_not() -> None:
    job = job_on(23, host_gb=64, optimizer_tier="host")
    way = ways_of(job)[-1]
    assert 0 < way.largest_micro_batch < 64
    for size, fits in ((way.largest_micro_batch, True), (2 * way.largest_micro_batch, False)):
        groups = groups_of(replace(job, batch=Batch(size)))
        one_by_one = [group for group in groups if group.job.batch.micro_batch == size]
        assert any((fitted(group)[1] <= 0).any() for group in one_by_one) == fits


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"view_tier": "disk"}, "made of the optimizer's"),
        ({"recovery": "spill"}, "needs a tier to wait in"),
        ({"gradient_tier": "disk", "mirror": True}, "mirrors are sent gradients"),
        ({"gradient_tier": "disk", "name": "tuned"}, "updates nothing until all gradients"),
    ],
)
def test_what_cannot_wait_is_refused_by_its_key(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        require_tier(job_on(24, disk_gb=1000, **options))


def test_weights_and_activations_leave_where_the_optimizer_alone_is_not_enough() -> None:
    """Gradients stay: 10.6 GB."""
    plan = every_plan(job_on(19, disk_gb=1000)).chosen.file()
    assert (plan.optimizer_tier, plan.view_tier, plan.activation_tier) == ("disk",) * 3
    case = case_of_plan(plan, "plan")
    (disk,) = [bound for bound in case.proved.verdict.lower_bounds if bound.tier == "disk"]
    assert disk.by_family["view_disk"] > 5 * GB
