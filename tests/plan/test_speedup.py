"""The heterogeneous speedup ratio: its arithmetic, and what it is measured against."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec
from ratrain.describe.presets import cluster_preset
from ratrain.plan.layout.jobs import load_job, strategy_of
from ratrain.plan.search.misfit import planned
from ratrain.plan.search.other_devices import Alone, Speedup, free_to_recover, speedup_of
from ratrain.program.replicas import Recovery

JOB = """
[model]
name = "small-llama"
sequence_length = 512
[cluster]
name = "lab-mixed"
devices = {devices}
[batch]
sequences = 8
[schedule]
dtype = "fp32"
{schedule}
"""
FAST, SLOW = cluster_preset("lab-mixed").device


def job_of(folder: Path, devices: int = 4, schedule: str = "") -> JobSpec:
    path = folder / "job.toml"
    path.write_text(JOB.format(devices=devices, schedule=schedule))
    return load_job(path)


def alone(kind: DeviceKind, devices: int, tokens_per_s: float | None) -> Alone:
    return Alone(kind, devices, devices, tokens_per_s)


# ---- arithmetic --------------------------------------------------------------------------


def test_the_ratio_is_the_plan_over_the_sum_of_the_kinds_alone() -> None:
    speedup = Speedup(330.0, (alone(FAST, 2, 200.0), alone(SLOW, 2, 100.0)))
    assert speedup.hsr == speedup.ratio == pytest.approx(1.1)


rates = st.floats(1e-3, 1e6)


@given(st.integers(1, 1024), st.integers(1, 1024), rates, rates, rates)
def test_it_is_h2s_formula_over_tokens_of_each_device(
    fast: int, slow: int, of_fast: float, of_slow: float, mixed: float
) -> None:
    """HSR = TGS x sum N_k / sum (TGS_k x N_k), with TGS tokens per device and second."""
    speedup = Speedup(
        mixed * (fast + slow),
        (alone(FAST, fast, of_fast * fast), alone(SLOW, slow, of_slow * slow)),
    )
    wanted = mixed * (fast + slow) / (of_fast * fast + of_slow * slow)
    assert speedup.hsr == pytest.approx(wanted)


def test_a_kind_without_a_plan_leaves_a_ratio_over_the_others_and_no_hsr() -> None:
    speedup = Speedup(330.0, (alone(FAST, 2, 220.0), alone(SLOW, 2, None)))
    assert speedup.hsr is None
    assert speedup.ratio == pytest.approx(1.5)
    assert [kind_alone.kind.name for kind_alone in speedup.missing] == ["slow-rank"]


def test_there_is_no_ratio_where_no_kind_has_a_plan() -> None:
    speedup = Speedup(330.0, (alone(FAST, 2, None), alone(SLOW, 2, None)))
    assert speedup.hsr is None and speedup.ratio is None


def test_kinds_that_are_faster_without_the_others_are_said_the_fastest_first() -> None:
    speedup = Speedup(100.0, (alone(SLOW, 2, 110.0), alone(FAST, 2, 200.0)))
    assert [kind_alone.kind.name for kind_alone in speedup.faster] == ["fast-rank", "slow-rank"]
    assert Speedup(250.0, speedup.alone).faster == ()


# ---- what each kind reaches alone --------------------------------------------------------


def test_one_kind_of_device_has_no_ratio(tmp_path: Path) -> None:
    assert speedup_of(job_of(tmp_path, devices=2), 100.0) is None


@pytest.mark.slow
def test_a_kind_alone_is_the_same_job_planned_on_its_devices(tmp_path: Path) -> None:
    speedup = speedup_of(job_of(tmp_path), 100.0)
    assert speedup is not None
    fast, slow = speedup.alone
    assert (fast.used, slow.used) == (2, 2)
    step_s = planned(job_of(tmp_path, devices=2)).best.step_s  # the fast ones come first
    assert fast.tokens_per_s == pytest.approx(8 * 512 / step_s)
    assert slow.tokens_per_s is not None and slow.tokens_per_s < 0.6 * 8 * 512 / step_s


def test_a_kind_that_cannot_hold_the_model_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    tight = replace(SLOW.memory, capacity_bytes=100_000_000)
    spec = replace(job.cluster.spec, device=(FAST, replace(SLOW, tiers=(tight,))))
    speedup = speedup_of(replace(job, cluster=replace(job.cluster, spec=spec)), 100.0)
    assert speedup is not None
    assert speedup.hsr is None and speedup.ratio is not None
    (slow,) = speedup.missing
    assert slow.kind.name == "slow-rank" and "short on stage" in slow.problem


@pytest.mark.parametrize("schedule", ["gpipe", "full-save", "megatron", "zb-h1", "ratrain"])
def test_a_kind_alone_may_recover_whatever_its_plan_does(tmp_path: Path, schedule: str) -> None:
    job = job_of(tmp_path, schedule=f'name = "{schedule}"\nrecovery = "keep-all"')
    free = strategy_of(free_to_recover(job))
    chosen = strategy_of(job)
    assert free.recovery is Recovery.FORWARD and not free.recovers_all
    assert free.skeleton == chosen.skeleton
    assert (free.layerwise, free.prefetch) == (chosen.layerwise, chosen.prefetch)
    assert free_to_recover(job).schedule.recovery == "auto"
