"""Sums of tensor groups inside a chip whose network is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ratrain.chip.noc.chip import ChipSpec
from ratrain.chip.noc.collectives import Kind, Request, collective
from ratrain.cli.main import ratrain
from ratrain.cost.collectives import fastest_all_reduce, ring_all_reduce
from ratrain.describe.cluster import ChipLink, ClusterSpec
from ratrain.describe.on_chip import ChipCollective, ChipNetwork
from ratrain.describe.presets import load_cluster
from ratrain.errors import SpecError
from ratrain.plan import load_job
from ratrain.plan.case.case import Case
from ratrain.plan.case.kinds import sums_on_chip
from ratrain.plan.search.every_plan import case_of_job

CLUSTER = """
[[device]]
name = "cluster"
devices_per_chip = 4
{chip}
launch = "0.15ms"
memory_efficiency = 1.0
[[device.tiers]]
name = "DDR"
capacity = "20GB"
bandwidth = "30GB/s"
[[device.rates]]
dtype = "fp16"
peak = "8TFLOP/s"
gemm = "5TFLOP/s"
[[host]]
name = "node"
device = "cluster"
devices = 4
count = "any"
[links.room]
latency = "40us"
bandwidth = "3.7GB/s"
"""
JOB = """
[model]
name = "tiny-llama"
sequence_length = 512
[cluster]
name = "cluster.toml"
devices = {devices}
[batch]
sequences = 8
micro_batch = 1
[layout]
pipeline = {pipeline}
tensor = {tensor}
sequence_parallel = {divided}
[schedule]
dtype = "fp16"
"""


@pytest.fixture(scope="module")
def chip_file() -> str:
    """What `ratrain noc costs --chip` prints."""
    ran = CliRunner().invoke(ratrain, ["noc", "costs", "--chip", "4x1", "--clock", "1.2"])
    assert ran.exit_code == 0, ran.output
    return ran.output


def cluster(folder: Path, chip_file: str, chip: str = 'chip = "chip.toml"') -> ClusterSpec:
    (folder / "chip.toml").write_text(chip_file)
    (folder / "cluster.toml").write_text("name = 'chips'\n" + CLUSTER.format(chip=chip))
    return load_cluster(folder / "cluster.toml")


def network_of(spec: ClusterSpec) -> ChipNetwork:
    network = spec.device[0].chip
    assert network is not None
    return network


@pytest.mark.parametrize("size_bytes", [1024, 4096])
@pytest.mark.parametrize("devices", [2, 4])
def test_a_sum_takes_what_the_simulated_chip_takes(
    size_bytes: int, devices: int, chip_file: str, tmp_path: Path
) -> None:
    network = network_of(cluster(tmp_path, chip_file))
    chip = ChipSpec(4, 1)

    def cycles(kind: Kind) -> int:
        request = Request(kind, "hw", size_bytes, devices, 1, batches=1, values=False)
        return collective(chip, request).cycles

    simulated = cycles("reduce") + cycles("multicast")
    priced_s = network.sum_s(size_bytes, devices, "hardware")
    assert priced_s == pytest.approx(simulated / 1.2e9, rel=0.1)


def test_a_group_inside_a_chip_takes_its_network_and_a_larger_one_the_link(
    chip_file: str, tmp_path: Path
) -> None:
    spec = cluster(tmp_path, chip_file)
    a, b, c = (spec.devices(8)[number] for number in (0, 3, 4))
    inside, across = spec.link(a, b), spec.link(a, c)
    assert isinstance(inside, ChipLink) and not isinstance(across, ChipLink)
    size = 1 << 20
    assert fastest_all_reduce(size, 4, across) == ring_all_reduce(size, 4, across)
    assert fastest_all_reduce(size, 1, inside) == ring_all_reduce(size, 1, inside)
    on_chip = fastest_all_reduce(size, 4, inside)
    assert on_chip.volume_bytes == 0  # the link is free meanwhile
    assert on_chip.latency_s == network_of(spec).sum_s(size, 4, "hardware")


@given(st.integers(1, 1 << 32), st.integers(2, 16), st.floats(0, 1e6), st.floats(0, 100))
def test_a_sum_never_takes_longer_than_the_ring(
    size: int, devices: int, alpha: float, beta: float
) -> None:
    kinds = ("reduce", "multicast")
    rows = tuple(ChipCollective(kind, "hardware", alpha, beta, 1) for kind in kinds)
    network = ChipNetwork(4, 4, 1.0, "hardware", rows)
    link = ChipLink(1e-6, 1e9, network=network)
    ring_s = ring_all_reduce(size, devices, link).alone_s(1e9)
    assert fastest_all_reduce(size, devices, link).alone_s(1e9) <= ring_s


@pytest.mark.parametrize(
    ("chip", "text", "message"),
    [
        ('chip = "nothing.toml"', "", "there is no file"),
        ('chip = "chip.toml"', "columns = 4\nrows = 1\n", "clock_ghz"),
        ('chip = "chip.toml"', "rows = 'x'\n", "chip.toml:1"),
    ],
)
def test_a_wrong_chip_is_refused_with_its_place(
    chip: str, text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as caught:
        cluster(tmp_path, text, chip)
    assert message in str(caught.value)


def test_a_chip_has_room_for_its_devices_and_costs_of_what_it_has(
    chip_file: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match="4 devices are on a chip of 2 x 1"):
        cluster(tmp_path, chip_file.replace("columns = 4", "columns = 2"))
    with pytest.raises(SpecError, match="0 costs of reduce in software"):
        rows = tuple(ChipCollective(k, "hardware", 1, 1, 1) for k in ("reduce", "multicast"))
        ChipNetwork(4, 1, 1.0, "software", rows)


def case(folder: Path, *, devices: int = 4, tensor: int = 2, divided: bool = False) -> Case:
    text = JOB.format(
        devices=devices, pipeline=devices // tensor, tensor=tensor, divided=str(divided).lower()
    )
    (folder / "job.toml").write_text(text)
    return case_of_job(load_job(folder / "job.toml"))


def test_the_three_ways_are_ordered_and_the_used_one_is_the_step(
    chip_file: str, tmp_path: Path
) -> None:
    cluster(tmp_path, chip_file)
    found = sums_on_chip(case(tmp_path))
    assert found is not None and found.devices == 2
    ways = {way.by: way for way in found.ways}
    assert [by for by in ways if ways[by].used] == ["hardware"]
    assert ways["hardware"].sum_s < ways["software"].sum_s < ways["ring"].sum_s
    steps = [ways[by].step_time_s for by in ("hardware", "software", "ring")]
    assert steps == sorted(steps)


def test_nothing_is_said_where_no_sum_is_inside_a_chip(chip_file: str, tmp_path: Path) -> None:
    cluster(tmp_path, chip_file)
    assert sums_on_chip(case(tmp_path, tensor=1)) is None
    assert sums_on_chip(case(tmp_path, divided=True)) is None
    spec = cluster(tmp_path, chip_file, chip="")
    assert spec.device[0].chip is None
    assert sums_on_chip(case(tmp_path)) is None


def test_a_chip_changes_nothing_but_the_kind_of_its_link(chip_file: str, tmp_path: Path) -> None:
    with_chip, without = cluster(tmp_path, chip_file), cluster(tmp_path, chip_file, chip="")
    a, b, *_ = with_chip.devices(4)
    link = with_chip.link(a, b)
    assert isinstance(link, ChipLink)
    plain = without.link(*without.devices(2))
    assert vars(replace(link, network=None)) == {**vars(plain), "network": None}
