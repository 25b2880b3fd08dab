"""Measured layers and links by message size in cluster files, and their mistakes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.cost.collectives import message, ring_half
from ratrain.describe.amounts import NOT_STATED
from ratrain.describe.cluster import ClusterSpec, Link, SizePoint
from ratrain.describe.presets import cluster_preset, load_cluster
from ratrain.describe.tables import sources
from ratrain.errors import SpecError

CLUSTER = """
name = "measured"
source = "test"
[[device]]
name = "odd"
launch = "5us"
launch_source = "test"
memory_efficiency = 0.8
memory_efficiency_source = "test"
[[device.tiers]]
name = "memory"
capacity = "40GB"
bandwidth = "1TB/s"
source = "test"
[[device.layer_profile]]
shape = {hidden = 4096, ffn = 11008, heads = 32}
sequence = 2048
times = [{micro_batch = 1, forward = "4ms", backward = "9ms"}]
source = "test"
[[host]]
name = "a"
device = "odd"
devices = 4
count = 2
[links.room]
latency = "40us"
bandwidth = "2GB/s"
source = "test"
"""
TIMES = 'times = [{micro_batch = 1, forward = "4ms", backward = "9ms"}]'


def load(tmp_path: Path, text: str) -> ClusterSpec:
    path = tmp_path / "measured.toml"
    path.write_text(text)
    return load_cluster(path)


def test_a_cluster_file_need_not_state_where_its_figures_come_from(tmp_path: Path) -> None:
    lines = [line for line in CLUSTER.splitlines() if "source" not in line]
    cluster = load(tmp_path, "\n".join(lines))
    assert {*sources(cluster).values()} == {NOT_STATED}


def test_a_device_may_be_described_by_measured_layers_alone(tmp_path: Path) -> None:
    (device,) = load(tmp_path, CLUSTER).device
    (entry,) = device.layer_profile
    assert (entry.tensor, entry.dtype, entry.sums) == (1, "fp16", "apart")
    assert entry.case.shape.kv_heads == 32
    assert not device.rates
    assert "measured" in str(device)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (TIMES, "times = []", "has no times"),
        (TIMES, TIMES.replace("4ms", "0ms"), "takes 0 seconds"),
        (TIMES, TIMES.replace("9ms", "0ms"), "takes 0 seconds"),
        (TIMES, TIMES.replace('"4ms"', "4"), "unit"),
        (TIMES, TIMES.replace("}]", "}, {micro_batch = 1, forward = '1s', backward = '1s'}]"),
         "given twice"),
        (", heads = 32", "", "lacks heads"),
        ("heads = 32", "heads = 99999999", "above the largest"),
        ("sequence = 2048", "sequence = 9999999999", "above the largest"),
        (TIMES, TIMES.replace("4ms", "9e30s"), "above the largest"),
        ('bandwidth = "2GB/s"', 'bandwidth = "2GB/s"\nlog_quadratic = [1e300, 0.0, 0.0]',
         "above the largest"),
        ("heads = 32", "heds = 32", "unknown key"),
        ("sequence = 2048", "", '"sequence" is missing'),
        ('bandwidth = "2GB/s"', 'bandwidth = "2GB/s"\nlog_quadratic = [1.0]', "1 numbers"),
        ('bandwidth = "2GB/s"', 'bandwidth = "2GB/s"\nlog_quadratic = [0.0, 0.0, -1.0]', "-1 GB/s"),
        ('bandwidth = "2GB/s"', 'bandwidth = "2GB/s"\nby_size = [{size = "1MB", '
         'bandwidth = "3GB/s"}]', "faster than the link"),
        ('bandwidth = "2GB/s"', 'bandwidth = "2GB/s"\nby_size = [{size = "2MB", bandwidth = '
         '"1GB/s"}, {size = "1MB", bandwidth = "1GB/s"}]', "not ascending"),
    ],
)  # fmt: skip
def test_a_wrong_measurement_is_one_error_with_a_fix(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    assert old in CLUSTER
    with pytest.raises(SpecError) as caught:
        load(tmp_path, CLUSTER.replace(old, new))
    assert says in str(caught.value)
    assert caught.value.fix and caught.value.place


def test_two_entries_of_one_shape_are_told_to_be_joined(tmp_path: Path) -> None:
    begin, end = CLUSTER.index("[[device.layer_profile]]"), CLUSTER.index("[[host]]")
    twice = CLUSTER[:end] + CLUSTER[begin:end] + CLUSTER[end:]
    with pytest.raises(SpecError, match="layer profiles of the same"):
        load(tmp_path, twice)


def test_an_unknown_profile_names_those_that_exist(tmp_path: Path) -> None:
    text = CLUSTER.replace('name = "odd"\nlaunch', 'name = "odd"\nprofile = "grolar-a10"\nlaunch')
    with pytest.raises(SpecError, match="grolar-a10g"):
        load(tmp_path, text)


LINK = Link(
    10e-6,
    4e9,
    "test",
    by_size=(SizePoint(1_000_000, 1e9), SizePoint(4_000_000, 3e9), SizePoint(16_000_000, 4e9)),
)


@pytest.mark.parametrize(
    ("size_bytes", "bandwidth"),
    [(1_000, 1e9), (1_000_000, 1e9), (2_000_000, 2e9), (4_000_000, 3e9), (16_000_000, 4e9)],
)
def test_a_message_takes_the_bandwidth_of_its_size(size_bytes: int, bandwidth: float) -> None:
    sent = message(size_bytes, LINK)
    assert sent.alone_s(LINK.bandwidth_bytes_per_s) == pytest.approx(10e-6 + size_bytes / bandwidth)


def test_beyond_the_largest_size_more_bytes_go_at_the_link_s_bandwidth() -> None:
    slower = replace(LINK, by_size=LINK.by_size[:2])
    last, more = (
        message(size, slower).alone_s(slower.bandwidth_bytes_per_s) for size in (4e6, 8e6)
    )
    assert more - last == pytest.approx(4e6 / 4e9)


@given(st.floats(1, 1e9))
def test_a_part_of_a_shared_link_is_slower_at_every_size_alike(size_bytes: float) -> None:
    part = LINK.divided(4)
    whole_s = message(size_bytes, LINK).alone_s(LINK.bandwidth_bytes_per_s) - 10e-6
    part_s = message(size_bytes, part).alone_s(part.bandwidth_bytes_per_s) - 10e-6
    assert part_s == pytest.approx(4 * whole_s)


def test_a_ring_sends_parts_and_each_takes_the_bandwidth_of_a_part() -> None:
    half = ring_half(4_000_000, 4, LINK)
    assert half.alone_s(LINK.bandwidth_bytes_per_s) == pytest.approx(3 * (10e-6 + 1e6 / 1e9))


def test_a_fit_over_the_logarithm_of_the_size_is_read_where_it_grows() -> None:
    """Sailor's fit for two A100 between hosts: a x^2 + b x + c in GB/s, x = log2 of MB."""
    link = Link(10e-6, 3.67e9, "test", log_quadratic=(-0.0072, 0.2317, 2.1127))
    points = {point.size_bytes: point.bandwidth_bytes_per_s for point in link.points}
    assert points[1_000_000] == pytest.approx(2.1127e9)
    assert points[16_000_000] == pytest.approx((-0.0072 * 16 + 0.2317 * 4 + 2.1127) * 1e9)
    rates = list(points.values())
    assert rates == sorted(rates)
    assert rates[-1] <= 3.67e9


def test_links_without_measurements_are_priced_as_ever() -> None:
    link = cluster_preset("mt3000").links["room"]
    assert link.size_s(1e6) == 0
    assert link.points == ()


PAIRS = """
name = "pairs"
[[device]]
name = "d"
launch = "1us"
memory_efficiency = 0.9
tiers = [{name = "memory", capacity = "16GB", bandwidth = "1TB/s"}]
rates = [{dtype = "fp16", peak = "10TFLOP/s", gemm = "8TFLOP/s"}]
[[host]]
name = "a"
device = "d"
devices = 1
count = 2
[host.to.b]
latency = "1ms"
bandwidth = "1GB/s"
[[host]]
name = "b"
device = "d"
devices = 1
count = 1
[host.links.room]
latency = "20us"
bandwidth = "5GB/s"
[links.room]
latency = "10us"
bandwidth = "10GB/s"
"""


def test_a_link_between_two_sorts_of_hosts_counts_both_ways_before_those_of_levels(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pairs.toml"
    path.write_text(PAIRS)
    cluster = load_cluster(path)
    first, second, third = cluster.devices(3)
    rates = [
        cluster.link(*pair).bandwidth_bytes_per_s
        for pair in ((first, third), (third, first), (first, second))
    ]
    assert rates == [1e9, 1e9, 10e9]


def test_a_link_to_an_unknown_host_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    path = tmp_path / "pairs.toml"
    path.write_text(PAIRS.replace("host.to.b", "host.to.c"))
    with pytest.raises(SpecError, match=r'unknown host "c"(.|\n)*valid: b'):
        load_cluster(path)
