"""A cluster cut down to some kinds, or grown by a host: the links of its devices stay."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from ratrain.describe.job import JobSpec
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.search.other_devices import devices_of_kind, only_kinds, with_more_hosts

JOB = """
[model]
name = "tiny-llama"
sequence_length = 64
[cluster]
name = "mixed-sites"
devices = {devices}
[batch]
sequences = 8
"""


@pytest.fixture(params=[14, 72])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> JobSpec:
    """Two kinds of host; with 14 devices the last host is used in part."""
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(devices=request.param))
    return load_job(path)


def links(job: JobSpec, numbers: list[int]) -> list[object]:
    """The links of every pair of some devices."""
    members = job.cluster.members()
    spec = job.cluster.spec
    return [spec.link(members[a], members[b]) for a, b in combinations(numbers[:20], 2)]


def test_a_kind_alone_keeps_its_devices_and_their_links(job: JobSpec) -> None:
    for kind in job.cluster.kinds:
        cut = only_kinds(job, [kind])
        numbers = [d.index for d in job.cluster.members() if d.kind == kind]
        assert len(cut.cluster.members()) == len(numbers) == devices_of_kind(job, kind)
        assert cut.cluster.kinds == (kind,)
        assert links(cut, list(range(len(numbers)))) == links(job, numbers)


def test_all_kinds_are_the_job_s_devices(job: JobSpec) -> None:
    whole = only_kinds(job, job.cluster.kinds)
    before = [(d.kind, d.host, d.chip) for d in job.cluster.members()]
    assert [(d.kind, d.host, d.chip) for d in whole.cluster.members()] == before


@pytest.mark.parametrize("count", [1, 4])
def test_another_host_is_one_like_the_fullest_of_its_kind(job: JobSpec, count: int) -> None:
    for kind, size in zip(job.cluster.kinds, (8, 4), strict=True):
        larger, added = with_more_hosts(job, kind, count)
        assert added == count * size
        assert devices_of_kind(larger, kind) == devices_of_kind(job, kind) + added
        assert larger.cluster.devices == job.cluster.devices + added
        hosts = [device.host for device in larger.cluster.members()]
        assert len(set(hosts)) == len({d.host for d in job.cluster.members()}) + count
        others = [d.index for d in job.cluster.members() if d.kind != kind]
        kept = [d.index for d in larger.cluster.members() if d.kind != kind]
        assert links(larger, kept) == links(job, others)
