"""Ranks on two machines: two network namespaces that share a folder and one link."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
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
SETTING = Setting(pipeline=2, data=2, steps=5)


@pytest.fixture
def hosts() -> Generator[None]:
    """Two machines at 10.96.77.1 and 10.96.77.2."""
    lines = [["ip", "netns", "add", host] for host in HOSTS]
    wire = f"link add wire type veth peer name wire netns {HOSTS[1]}"
    lines += [["ip", "-n", HOSTS[0], *wire.split()]]
    for number, host in enumerate(HOSTS):
        lines += [["ip", "-n", host, "addr", "add", f"10.96.77.{number + 1}/24", "dev", "wire"]]
        lines += [["ip", "-n", host, "link", "set", name, "up"] for name in ("lo", "wire")]
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
