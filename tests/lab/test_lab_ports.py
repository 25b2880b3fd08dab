"""What a lab is made of, from the cluster file alone: ports, addresses, queues, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import cluster, device, host, link, plain
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.describe.presets import cluster_preset
from ratrain.errors import Infeasible, SpecError
from ratrain.lab import Place, enter, groups, place_from_env, place_to_env, wires
from ratrain.lab.needs import missing
from ratrain.lab.place import VARIABLE
from ratrain.lab.ports import memory_limit_bytes, ports

NAMES = st.text(st.characters(categories=("L", "N", "P")), min_size=1)
PLACES = st.builds(
    Place,
    st.integers(0, 999),
    st.integers(0, 999),
    NAMES,
    NAMES,
    NAMES,
    st.lists(NAMES).map(tuple),
    st.floats(0.01, 64),
    st.integers(1, 1 << 49),
)


@settings(deadline=None)
@given(PLACES)
def test_a_place_comes_through_the_environment_unchanged(place: Place) -> None:
    assert place_from_env(place_to_env(place)) == place


@pytest.mark.parametrize("text", ["", "7", "[]", "{}", '{"rank": 1}', '{"cgroups": 3}'])
def test_a_damaged_place_is_one_clear_error(text: str) -> None:
    with pytest.raises(SpecError, match="not a place of a lab"):
        place_from_env({VARIABLE: text})


def test_without_a_lab_there_is_no_place() -> None:
    assert place_from_env({}) is None


def test_a_place_whose_lab_is_gone_says_so() -> None:
    gone = Place(0, 0, "ratlab-0-0-p0", "10.88.0.1", "lab0", (), 1.0, 1)
    with pytest.raises(SpecError, match="the lab is gone"):
        enter(gone)


@settings(deadline=None)
@given(count=st.integers(1, 12), devices=st.integers(1, 5), shared=st.booleans())
def test_every_rank_stands_behind_one_port_with_an_address_of_its_own(
    count: int, devices: int, shared: bool
) -> None:
    each = link(shared_by="host" if shared else "device")
    small = cluster(device(), host(devices=devices, count=count), each)
    made_ports = ports(small, count * devices)
    assert [rank for port in made_ports for rank in port.ranks] == list(range(count * devices))
    assert len({port.address for port in made_ports}) == len(made_ports)
    assert len(made_ports) == (count if shared else count * devices)


def test_devices_that_share_a_host_s_link_share_a_port_and_its_rate_within() -> None:
    first, second = ports(plain(devices=2), 4)
    assert first.ranks == (0, 1)
    assert first.rate_to(second) == first.rate_to(first) == 12.5e6


def test_a_port_sends_at_the_rate_of_the_level_that_it_shares_with_the_other_end() -> None:
    far = cluster(device(), host(), host(site="there"), link(), link("world", "20Mbit/s", "device"))
    made_ports = ports(far, 4)
    assert made_ports[0].rate_to(made_ports[1]) == 12.5e6
    assert made_ports[0].rate_to(made_ports[2]) == 2.5e6
    assert [level for level, _ in made_ports[0].rates_bytes_per_s] == ["room", "world"]
    lines = wires.shape_lines("lab0", made_ports[0], made_ports, "dst")
    assert sum("u32 match ip dst" in line for line in lines) == 3


def test_between_unequal_hosts_the_slower_port_counts() -> None:
    room_link = '[host.links.room]\nlatency = "1us"\nbandwidth = "10Mbit/s"\nsource = "made up"\n'
    mixed = cluster(device("a"), device("b"), host("a"), host("b"), room_link, link())
    made_ports = ports(mixed, 4)
    assert made_ports[0].rate_to(made_ports[1]) == 12.5e6
    assert made_ports[0].rate_to(made_ports[2]) == made_ports[2].rate_to(made_ports[0]) == 1.25e6


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((host(devices=2), link(), link("host", "40GB/s")), "more than one machine"),
        ((host(devices=2), link(shared_by="device"), link("host")), "shares a link inside it"),
        (
            (
                host(devices=2, count=1),
                host(count=1),
                host(site="there"),
                link(),
                link("world", shared_by="device"),
            ),
            "both per-device and shared links",
        ),
        ((host(count=400), link()), "at most 250"),
    ],
)
def test_what_a_lab_cannot_make_is_refused_with_a_reason(parts: tuple[str, ...], says: str) -> None:
    small = cluster(device(), *parts)
    with pytest.raises(Infeasible, match=says):
        ports(small, small.size or 0)


def test_a_device_that_no_lab_stands_in_for_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match=r"device mt3000-cluster"):
        ports(cluster_preset("mt3000"), 4)


def test_memory_is_the_first_tier_and_the_overhead() -> None:
    slow = cluster_preset("lab-mixed").devices(4)[3]
    assert memory_limit_bytes(slow) == 1_600_000_000


@settings(deadline=None)
@given(st.floats(1e3, 1.25e9))
def test_a_queue_holds_a_burst_and_a_burst_holds_a_packet(rate: float) -> None:
    burst = wires.burst_bytes(rate)
    assert 1500 < burst < wires.queue_bytes(rate)


def test_version_two_groups_are_made_where_the_kernel_lets_them(tmp_path: Path) -> None:
    """A tree as a system service sees it: only the root hands both controllers down."""
    inner = tmp_path / "system.slice" / "my.service"
    inner.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (inner.parent / "cgroup.subtree_control").write_text("memory pids\n")
    mounted = groups.mounts(f"30 23 0:26 / {tmp_path} rw shared:4 - cgroup2 cgroup2 rw\n")
    assert mounted[0].version == 2
    parent = groups.parents(mounted, "0::/system.slice/my.service\n")
    assert parent == [groups.Parent(tmp_path, 2, ("cpu", "memory"))]


def test_version_one_groups_are_made_below_our_own(tmp_path: Path) -> None:
    (tmp_path / "memory" / "ours").mkdir(parents=True)
    (tmp_path / "cpu").mkdir()
    lines = [
        f"{n} 23 0:26 / {tmp_path}/{name} rw - cgroup cgroup rw,{name}"
        for n, name in enumerate(("cpu", "memory"))
    ]
    folders = groups.parents(groups.mounts("\n".join(lines)), "4:memory:/ours\n1:cpu:/\n")
    assert [parent.path for parent in folders] == [tmp_path / "cpu", tmp_path / "memory" / "ours"]


@pytest.mark.skipif(os.geteuid() == 0, reason="about users who are not root")
def test_without_root_the_reason_is_said() -> None:
    assert missing() == ["it needs root"]


def test_the_command_line_refuses_a_cluster_no_lab_can_make_in_one_message() -> None:
    command = [sys.executable, "-c", "from ratrain.cli.main import main; main()"]
    done = subprocess.run(
        [*command, "lab", "check", "mt3000", "--devices", "2", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == SpecError.exit_code
    assert json.loads(done.stdout)["fix"].startswith("add [device.lab]")
    assert "Traceback" not in done.stderr
