"""What sending through host memory costs, where devices have memory of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ratrain.describe.cluster import Link
from ratrain.describe.job import JobSpec
from ratrain.describe.staging import StagedLink, network_words
from ratrain.plan.layout.jobs import load_job

JOB = """
[model]
name = "tiny-llama"
sequence_length = 128

[cluster]
name = "cluster.toml"
devices = 4

[batch]
sequences = 8
micro_batch = 1

[layout]
pipeline = 2
data = 2

[schedule]
name = "1f1b"
dtype = "bf16"
"""
CLUSTER = """
name = "two-hosts"

[[device]]
name = "gpu"
runs_on = "cuda"
launch = "5us"
memory_efficiency = 0.8
tiers = [
  {{ name = "HBM", capacity = "80GB", bandwidth = "3350GB/s" }},{host}
]
rates = [{{ dtype = "bf16", peak = "989TFLOP/s", gemm = "590TFLOP/s" }}]

[[host]]
name = "machine"
device = "gpu"
devices = 2
count = 2

[links.host]
latency = "2us"
bandwidth = "200GB/s"
by_size = [{{ size = "1MB", bandwidth = "100GB/s" }}]

[links.room]
latency = "10us"
bandwidth = "25GB/s"
shared_by = "host"
"""
TIER = '\n  { name = "host", capacity = "200GB", bandwidth = "50GB/s" },'


def job_of(folder: Path, *sets: str, host: str = TIER) -> JobSpec:
    (folder / "cluster.toml").write_text(CLUSTER.format(host=host))
    (folder / "job.toml").write_text(JOB)
    return load_job(folder / "job.toml", sets)


def link_of(job: JobSpec, a: int, b: int) -> Link:
    devices = job.cluster.members()
    return job.cluster.spec.link(devices[a], devices[b])


def message_s(link: Link, size: int) -> float:
    return link.latency_s + link.size_s(size) + size / link.bandwidth_bytes_per_s


@pytest.mark.parametrize("size", [1_000_000, 64_000_000])
@pytest.mark.parametrize("other", [1, 2], ids=["host", "room"])
def test_a_staged_message_takes_its_link_s_time_and_that_of_two_copies(
    other: int, size: int, tmp_path: Path
) -> None:
    direct = link_of(job_of(tmp_path, "train.network=direct"), 0, other)
    staged = link_of(job_of(tmp_path), 0, other)
    copies_s = 2 * size / 50e9
    assert message_s(staged, size) == pytest.approx(message_s(direct, size) + copies_s, rel=1e-9)
    assert (staged.shared_by, staged.latency_s) == (direct.shared_by, direct.latency_s)


@pytest.mark.parametrize(
    ("sets", "host"),
    [(("train.network=direct",), TIER), (("train.device=cpu",), TIER), ((), "")],
    ids=["direct", "on processors", "nothing known"],
)
def test_links_are_as_their_file_has_them_where_nothing_is_copied_or_known(
    sets: tuple[str, ...], host: str, tmp_path: Path
) -> None:
    job = job_of(tmp_path, *sets, host=host)
    assert not isinstance(link_of(job, 0, 1), StagedLink)
    assert link_of(job, 0, 2).bandwidth_bytes_per_s == 25e9


def test_a_job_that_is_changed_stages_once_and_lets_it_be_for_another_network(
    tmp_path: Path,
) -> None:
    job = job_of(tmp_path)
    again = replace(job, batch=replace(job.batch, sequences=16))
    assert again.cluster.spec is job.cluster.spec
    direct = replace(job, train=replace(job.train, network="direct"))
    assert link_of(direct, 0, 1) == link_of(job_of(tmp_path, "train.network=direct"), 0, 1)


def test_the_plan_says_who_stages_and_what_links_lose(tmp_path: Path) -> None:
    def words(*sets: str, host: str = TIER) -> list[str]:
        job = job_of(tmp_path, *sets, host=host)
        return network_words(job.cluster.spec, job.cluster.kinds, job.train)

    assert words() == [
        "gpu stages what it sends in host memory, at 50 GB/s each way: host 200 GB/s becomes "
        "22.2 GB/s, room 25 GB/s becomes 12.5 GB/s"
    ]
    assert words(host="") == [
        "gpu stages what it sends in host memory; what that takes is left out: its [[device]] has "
        'no tier "host"'
    ]
    assert words("train.network=direct") == [
        "network direct, by NCCL: a rank sends one thing at a time"
    ]
    assert words("train.network=direct", "train.device=cpu") == [
        "network direct, by gloo: a rank sends one thing at a time"
    ]
    assert words("train.device=cpu") == []
