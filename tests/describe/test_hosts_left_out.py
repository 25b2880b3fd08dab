"""A cluster without some of its hosts: the others keep their names and their links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ratrain.describe.cluster import ClusterSpec, Device, HostKind, Link
from ratrain.describe.job import JobSpec
from ratrain.describe.presets import cluster_preset
from ratrain.describe.strict import FrozenMap
from ratrain.errors import SpecError
from ratrain.plan.layout.jobs import load_job

LAB = cluster_preset("cpu-lab")
LINK = next(iter(LAB.links.values()))
BASE = replace(LAB, links=FrozenMap({"room": LINK, "site": replace(LINK, latency_s=0.01)}))


def faster(times: int) -> Link:
    return replace(LINK, bandwidth_bytes_per_s=LINK.bandwidth_bytes_per_s * times)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    kinds = draw(st.integers(1, 4))
    hosts = [
        HostKind(
            f"host{number}",
            BASE.device[0].name,
            draw(st.integers(1, 2)),
            draw(st.integers(1, 3)),
            room=f"room{draw(st.integers(0, 1))}",
            to=FrozenMap(
                {
                    f"host{other}": faster(2 + number + other)
                    for other in range(kinds)
                    if other != number and draw(st.booleans())
                }
            ),
        )
        for number in range(kinds)
    ]
    return replace(BASE, host=tuple(hosts))


def named_devices(cluster: ClusterSpec) -> list[tuple[str, int, Device]]:
    """(its host's name, its place in it, it)."""
    assert cluster.size is not None
    devices = cluster.devices(cluster.size)
    names, first = cluster.host_names(), dict[int, int]()
    for device in devices:
        first.setdefault(device.host, device.index)
    return [(names[d.host], d.index - first[d.host], d) for d in devices]


@given(clusters(), st.data())
def test_the_others_keep_their_names_kinds_and_links(
    cluster: ClusterSpec, data: st.DataObject
) -> None:
    names = cluster.host_names()
    lost = data.draw(st.lists(st.sampled_from(names), unique=True))
    assume(len(lost) < len(names))
    left = cluster.without(lost)
    assert left.host_names() == [name for name in names if name not in lost]
    before = {(name, place): device for name, place, device in named_devices(cluster)}
    after = {(name, place): device for name, place, device in named_devices(left)}
    assert after.keys() == {key for key in before if key[0] not in lost}
    for a, here in after.items():
        assert here.kind == before[a].kind
        for b, there in after.items():
            if a != b:
                assert left.link(here, there) == cluster.link(before[a], before[b])


def test_a_host_that_is_not_there_is_named_with_those_that_are() -> None:
    cluster = replace(BASE, host=(HostKind("oak", BASE.device[0].name, 1, 2),))
    with pytest.raises(SpecError, match="no host 'oak-3'") as refused:
        cluster.without(("oak-3",))
    assert "oak-1" in refused.value.fix or "oak-2" in refused.value.fix
    with pytest.raises(SpecError, match="no host is left"):
        cluster.without(("oak-1", "oak-2"))


def job_without_a_host(folder: Path, asked: int, layout: str = "") -> JobSpec:
    job = folder / "job.toml"
    clusters = Path(__file__).parents[2] / "examples" / "clusters"
    job.write_text(f'''
[model]
name = "tiny-llama"
sequence_length = 64
[cluster]
name = "{clusters / "two-sites-lab.toml"}"
devices = {asked}
without = ["here-2"]
[batch]
sequences = 4
{layout}
[schedule]
dtype = "fp32"
''')
    return load_job(job)


@pytest.mark.parametrize(("asked", "left"), [(4, 3), (3, 3), (2, 2)])
def test_a_job_without_a_host_takes_as_many_devices_as_are_left(
    tmp_path: Path, asked: int, left: int
) -> None:
    assert job_without_a_host(tmp_path, asked).cluster.devices == left


def test_a_layout_for_devices_that_are_left_out_is_left_to_the_planner_and_says_so(
    tmp_path: Path,
) -> None:
    job = job_without_a_host(tmp_path, 4, "[layout]\npipeline = 2\ndata = 2")
    assert job.layout is None
    assert job.unused == ("[layout] changes nothing here: it is for 4 devices, 3 are left",)


def test_a_layout_for_the_devices_that_are_left_is_kept_and_another_is_refused(
    tmp_path: Path,
) -> None:
    kept = job_without_a_host(tmp_path, 4, "[layout]\npipeline = 3")
    assert kept.layout is not None and kept.layout.pipeline == 3 and not kept.unused
    with pytest.raises(SpecError, match="= 2 devices, but the job has 3"):
        job_without_a_host(tmp_path, 4, "[layout]\npipeline = 2")
