"""Devices that a plan leaves idle: which are tried, and when they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from random_jobs import job

from ratrain.cli.main import ratrain
from ratrain.describe.job import JobSpec
from ratrain.plan.layout.enumerate import groups_of
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.price.kind_speed import kind_speed, least_step_s, parts_of_cluster
from ratrain.plan.search.layouts import search_layouts

DEVICE = """
[[device]]
name = "{name}"
launch = "10us"
launch_source = "a test"
memory_efficiency = 0.8
memory_efficiency_source = "a test"

[[device.tiers]]
name = "RAM"
capacity = "2GB"
bandwidth = "{memory}GB/s"
source = "a test"

[[device.rates]]
dtype = "fp32"
peak = "{rate}GFLOP/s"
gemm = "{rate}GFLOP/s"
source = "a test"

[[host]]
name = "{name}"
device = "{name}"
devices = 1
count = {count}
"""
LINKS = """
[links.room]
latency = "200us"
bandwidth = "1Gbit/s"
shared_by = "host"
source = "a test"
"""


def cluster_file(folder: Path, **kinds: tuple[int, int]) -> None:
    """A cluster of kinds, each with its GFLOP/s and how many there are."""
    text = 'name = "processes"\nsource = "a test"\n'
    for name, (rate, count) in kinds.items():
        text += DEVICE.format(name=name, rate=rate, memory=rate / 5, count=count)
    (folder / "cluster.toml").write_text(text + LINKS)


def job_file(folder: Path, sequences: int = 12, **kinds: tuple[int, int]) -> Path:
    """A job on all devices of such a cluster."""
    cluster_file(folder, **kinds)
    devices = sum(count for _, count in kinds.values())
    path = folder / "job.toml"
    path.write_text(
        '[model]\nname = "tiny-llama"\nsequence_length = 64\n'
        f'[cluster]\nname = "cluster.toml"\ndevices = {devices}\n'
        f"[batch]\nsequences = {sequences}\n"
        '[schedule]\nname = "ratrain"\ndtype = "fp32"\n'
    )
    return path


def straggler(folder: Path) -> JobSpec:
    return load_job(job_file(folder, steady=(30, 2), straggler=(3, 1)))


def test_parts_leave_out_the_slowest_hosts_first_and_never_the_fastest_kind_s(
    tmp_path: Path,
) -> None:
    spec = load_job(job_file(tmp_path, fast=(40, 2), slow=(10, 2), slower=(5, 1)))
    parts = [tuple(d.index for d in part) for part in parts_of_cluster(spec)]
    assert parts[:4] == [(0, 1, 2, 3, 4), (0, 1, 2, 3), (0, 1, 2), (0, 1)]
    assert len(set(parts)) == len(parts)


def test_a_cluster_of_one_kind_is_tried_whole_alone() -> None:
    assert len(list(parts_of_cluster(job("tiny-llama", "cpu-lab", 4, 8)))) == 1


@pytest.mark.slow
def test_no_row_is_estimated_faster_than_all_devices_at_work_all_of_the_time() -> None:
    for name, devices in (("mixed-sites", 12), ("lab-mixed", 4)):
        spec = job("small-llama", name, devices, 24)
        for part in parts_of_cluster(spec):
            least_s = least_step_s(spec, part)
            for tried in search_layouts(spec).tried:
                if {d.index for d in tried.plan.placement.devices} <= {d.index for d in part}:
                    assert tried.step_s >= least_s


def test_a_kind_s_least_time_is_that_of_its_best_micro_batch(tmp_path: Path) -> None:
    spec = straggler(tmp_path)
    steady, slow = (kind_speed(spec, kind) for kind in spec.cluster.spec.device)
    assert slow.layer_s > 5 * steady.layer_s
    group = next(iter(groups_of(spec)))
    times = group.times["steady"][1]
    assert steady.layer_s <= (times.forward_s + times.backward_s) / group.job.batch.micro_batch


def test_a_straggler_is_left_idle_where_that_is_faster(tmp_path: Path) -> None:
    spec = straggler(tmp_path)
    searched = search_layouts(spec)
    assert [device.kind.name for device in searched.best.plan.idle] == ["straggler"]
    assert searched.all_devices_s is not None
    assert searched.all_devices_s > searched.best.step_s
    fewer = replace(spec, cluster=replace(spec.cluster, devices=2))
    assert searched.best.step_s == search_layouts(fewer).best.step_s


def test_a_slow_device_that_helps_is_used(tmp_path: Path) -> None:
    searched = search_layouts(load_job(job_file(tmp_path, steady=(30, 1), slower=(15, 1))))
    assert not searched.best.plan.idle
    assert searched.all_devices_s is None


def test_three_devices_and_a_batch_that_no_three_divide_have_a_plan_of_two(tmp_path: Path) -> None:
    spec = load_job(job_file(tmp_path, sequences=5, steady=(30, 5), slow=(1, 2)))
    assert {d.kind.name for d in search_layouts(spec).best.plan.idle} >= {"slow"}


@pytest.mark.slow
def test_where_no_layout_takes_all_devices_the_plan_says_so_and_not_that_none_fits(
    tmp_path: Path,
) -> None:
    path = job_file(tmp_path, sequences=5, steady=(30, 5), slow=(1, 2))
    text = CliRunner().invoke(ratrain, ["plan", str(path)]).output
    assert "no layout of identical replicas uses all 7 devices" in text


@pytest.fixture
def printed(tmp_path: Path) -> tuple[str, Path]:
    path = job_file(tmp_path, steady=(30, 2), straggler=(3, 1))
    run = CliRunner().invoke(ratrain, ["plan", str(path), "-o", str(tmp_path / "plan.json")])
    assert run.exit_code == 0
    return run.output, tmp_path


def verb(*words: str) -> dict[str, Any]:
    run = CliRunner().invoke(ratrain, [*words, "--json"])
    assert run.exit_code == 0
    return json.loads(run.output)


@pytest.mark.slow
def test_the_idle_device_is_named_with_its_reason_and_stands_in_the_plan_file(
    printed: tuple[str, Path],
) -> None:
    text, folder = printed
    assert "idle: 1 device, 2 (straggler)" in text
    assert "the fastest plan found that uses every device takes" in text
    plan, by_job = (verb("simulate", str(folder / name)) for name in ("plan.json", "job.toml"))
    assert plan["job"]["idle_devices"] == by_job["job"]["idle_devices"] == [2]
    assert plan["step_time_s"] == by_job["step_time_s"]
    verb("verify", str(folder / "plan.json"))
    explained = verb("explain", str(folder / "plan.json"))
    assert explained["plan"]["idle_devices"] == [2]
