"""Ranks on two machines: two network namespaces that share a folder, and one link or two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
from launched import GRACE_S, assert_same_end, loss_bits, made, ranks_of, start, wait_until
from runs_made import Setting
from strangers import listening

from ratrain.readers.json import read_json_table
from ratrain.runtime.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]

HOSTS = ("rat-host-0", "rat-host-1")
WIRES = ("wire", "further")
SETTING = Setting(pipeline=2, data=2, steps=5)


@pytest.fixture
def hosts() -> Generator[None]:
    """Two machines at 10.96.77.1 and 10.96.77.2, and over another wire at 10.96.78.1 and .2."""
    lines = [["ip", "netns", "add", host] for host in HOSTS]
    lines += [["ip", "-n", host, "link", "set", "lo", "up"] for host in HOSTS]
    for network, wire in enumerate(WIRES):
        link = f"link add {wire} type veth peer name {wire} netns {HOSTS[1]}"
        lines += [["ip", "-n", HOSTS[0], *link.split()]]
        for number, host in enumerate(HOSTS):
            address = f"10.96.{77 + network}.{number + 1}/24"
            lines += [["ip", "-n", host, "addr", "add", address, "dev", wire]]
            lines += [["ip", "-n", host, "link", "set", wire, "up"]]
    try:
        for line in lines:
            subprocess.run(line, check=True)
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], check=False)


@contextmanager
def on_both(commands: list[list[str]], **variables: str) -> Generator[list[subprocess.Popen[str]]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    children = [
        subprocess.Popen(
            ["ip", "netns", "exec", host, *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host, command in zip(HOSTS, commands, strict=True)
    ]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.communicate()


def assert_well(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        output, _ = child.communicate(timeout=200)
        assert child.returncode == 0, output


def addresses_of_ranks(folder: RunFolder) -> set[str]:
    """Where ranks have listened at any moment until their first step."""
    seen, ranks = set[str](), dict[int, int]()
    while not folder.metrics.exists() or not folder.metrics.stat().st_size:
        if len(ranks) < folder.read_spec().seats.world_size:
            ranks = ranks_of(folder)  # looks at every process: too slow for each round
        for pid in ranks.values():
            try:
                seen |= {address for _, address, _ in listening([pid])}
            except OSError:
                continue
    return seen


@pytest.mark.usefixtures("hosts")
def test_torchrun_on_two_machines_trains_as_one_does_and_ranks_listen_at_the_address_given(
    tmp_path: Path,
) -> None:
    alone, folder = made(tmp_path / "alone", SETTING), made(tmp_path / "apart", SETTING)
    start(alone)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    torchrun += ["--nproc-per-node", "2", "--master-addr", "10.96.77.1", "--master-port", "29500"]
    rank = ["-m", "ratrain.runtime.rank", str(folder.path)]
    commands = [[*torchrun, "--node-rank", str(node), *rank] for node in (0, 1)]
    with on_both(commands) as children:
        assert addresses_of_ranks(folder) == {"10.96.77.1", "10.96.77.2"}
        assert_well(children)
    assert loss_bits(folder) == loss_bits(alone)
    assert_same_end(folder, alone)


def sent_bytes(wire: str) -> int:
    """Over a wire, by the first machine."""
    words = ["ip", "-n", HOSTS[0], "-s", "-j", "link", "show", wire]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return int(json.loads(said)[0]["stats64"]["tx"]["bytes"])


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "one network is down"])
def test_tensors_go_over_all_networks_that_hosts_share_with_the_same_bits(
    tmp_path: Path, is_cut: bool
) -> None:
    setting = Setting(data=2, steps=5, model=(("hidden_size", 128),))
    alone, folder = made(tmp_path / "alone", setting), made(tmp_path / "apart", setting)
    start(alone)
    for host, wire in product(HOSTS, WIRES):
        shape = f"qdisc add dev {wire} root tbf rate 100mbit burst 64kb latency 20ms"
        subprocess.run(["ip", "netns", "exec", host, "tc", *shape.split()], check=True)
    if is_cut:
        subprocess.run(["ip", "-n", HOSTS[1], "link", "set", "further", "down"], check=True)
    rank = [sys.executable, "-m", "ratrain.runtime.rank", str(folder.path)]
    commands = [
        ["env", f"RANK={n}", f"RATRAIN_ADDRESS=10.96.77.{n + 1},10.96.78.{n + 1}", *rank]
        for n in range(2)
    ]
    shared = {"LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.96.77.1"}
    before = sent_bytes("further")
    with on_both(commands, MASTER_PORT="29500", **shared) as children:
        output = [child.communicate(timeout=200)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0], output
    assert loss_bits(folder) == loss_bits(alone)
    assert_same_end(folder, alone)
    if is_cut:
        assert "rank 0 is not reached at 10.96.78.1 from 10.96.78.2" in output[1]
        assert "bytes go over the other networks" in output[1]
    else:
        assert sent_bytes("further") - before > 1 << 20


LOOP = """
for LOCAL_RANK in 0 1; do
  RANK=$((NODE * 2 + LOCAL_RANK)) LOCAL_RANK=$LOCAL_RANK WORLD_SIZE=4 \
  MASTER_ADDR=10.96.77.1 MASTER_PORT=29500 \
  PYTHON -m ratrain.runtime.rank RUN &
done; wait
"""


@pytest.mark.usefixtures("hosts")
def test_a_plain_loop_on_two_machines_trains_too_and_a_cut_wire_ends_it_in_time(
    tmp_path: Path,
) -> None:
    setting = Setting(pipeline=2, data=2, steps=100_000, timeout_s=12)
    folder = made(tmp_path, setting)
    loop = LOOP.replace("PYTHON", sys.executable).replace("RUN", str(folder.path))
    with on_both([["sh", "-c", f"NODE={node}; {loop}"] for node in (0, 1)]):
        wait_until(lambda: len(ranks_of(folder)) == 4)
        wait_until(lambda: len(folder.read_metrics()) >= 3 or not ranks_of(folder))
        subprocess.run(["ip", "-n", HOSTS[1], "link", "set", "wire", "down"], check=True)
        wait_until(lambda: not ranks_of(folder), 12 + GRACE_S)
    failures = [read_json_table(path)[0] for path in (folder.path / "ranks").glob("failure-*")]
    assert len(failures) == 4
    assert any("received nothing from rank" in failure["what"] for failure in failures)
