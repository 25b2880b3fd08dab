"""Ranks on two machines: two network namespaces that share a folder, and one link or two."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from authority import Authority
from launched import GRACE_S, assert_same_end, loss_bits, made, ranks_of, start, wait_until
from runs_made import Setting
from strangers import listening

from ratrain.models.huggingface.writer import named_tensors
from ratrain.models.shapes import unit_names
from ratrain.readers.json import read_json_table
from ratrain.runtime.run.trained import TrainedModel, trained_model
from ratrain.runtime.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]

HOSTS = ("rat-host-0", "rat-host-1")
WIRES = ("wire", "further")
LARGE = (("hidden_size", 128),)
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


SNIFF = """
import socket, sys
heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
heard.bind((sys.argv[1], 0))
heard.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE
print("listening", flush=True)
with open(sys.argv[2], "wb", buffering=0) as file:
    while True:
        file.write(heard.recv(1 << 17))
"""


@contextmanager
def overheard(folder: Path) -> Generator[list[Path]]:
    """Files that get every packet that passes the first machine's end of each wire."""
    files, listeners = [folder / f"{wire}.bin" for wire in WIRES], []
    for wire, file in zip(WIRES, files, strict=True):
        words = ["ip", "netns", "exec", HOSTS[0], sys.executable, "-c", SNIFF, wire, str(file)]
        listeners.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        assert listeners[-1].stdout and listeners[-1].stdout.readline()
    try:
        yield files
    finally:
        for listener in listeners:
            listener.kill()
            listener.communicate()


def one_rank_each(folder: RunFolder, **of_rank_1: str) -> list[list[str]]:
    """Rank 0 on one machine and rank 1 on the other, over both networks."""
    rank = [sys.executable, "-m", "ratrain.runtime.rank", str(folder.path)]
    further = [f"{name}={value}" for name, value in of_rank_1.items()]
    return [
        ["env", f"RANK={n}", f"RATRAIN_ADDRESS=10.96.77.{n + 1},10.96.78.{n + 1}", *more, *rank]
        for n, more in enumerate(([], further))
    ]


SHARED = {
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "10.96.77.1",
    "MASTER_PORT": "29500",
}


def in_the_clear(model: TrainedModel, heard: list[Path]) -> int:
    """How many of some pieces of a model's weights were heard."""
    weights = next(
        values for values in map(model.source, unit_names(model.spec)) if len(values) > 50_000
    )
    raw = weights.numpy().tobytes()
    pieces = [raw[at : at + 64] for at in range(0, len(raw) - 64, len(raw) // 50)]
    everything = b"".join(file.read_bytes() for file in heard)
    assert len(everything) > 1 << 20
    return sum(piece in everything for piece in pieces)


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize("tls", ["off", "secret", "certificates"])
def test_under_tls_training_has_the_same_bits_and_no_tensor_is_in_the_clear_on_any_wire(
    tmp_path: Path, tls: str
) -> None:
    setting = Setting(data=2, steps=3, sharding=1, model=LARGE)
    alone = made(tmp_path / "alone", setting)
    start(alone)
    if tls == "certificates":
        (tmp_path / "tls").mkdir()
        tls = str(Authority(tmp_path / "tls").sign("host").authority.parent)  # type: ignore[union-attr]
    setting = replace(setting, train=(("tls", tls),))
    folder = made(tmp_path / "apart", setting)
    with (
        overheard(tmp_path) as heard,
        on_both(one_rank_each(folder), **SHARED) as children,
    ):
        assert_well(children)
    assert loss_bits(folder) == loss_bits(alone)
    assert_same_end(folder, alone)
    assert (in_the_clear(trained_model(folder.path), heard) > 0) == (tls == "off")


@pytest.mark.usefixtures("hosts")
def test_a_host_whose_job_has_no_tls_is_refused_in_seconds(tmp_path: Path) -> None:
    setting = Setting(data=2, steps=3, train=(("tls", "secret"),))
    folder = made(tmp_path / "ours", setting)
    theirs = tmp_path / "theirs"
    shutil.copytree(folder.path.parent, theirs, copy_function=shutil.copy2)
    job, run = theirs / Path(folder.read_spec().job_path).name, theirs / folder.path.name
    job.write_text(job.read_text().replace('tls = "secret"', 'tls = "off"'))
    (run / "run.json").write_text(
        (run / "run.json").read_text().replace(str(folder.path.parent), str(theirs))
    )
    commands = [one_rank_each(folder)[0], one_rank_each(RunFolder(run))[1]]
    with on_both(commands, **SHARED) as children:
        began_s = time.monotonic()
        output, _ = children[1].communicate(timeout=60)
    assert children[1].returncode and time.monotonic() - began_s < 40  # most of it loads torch
    assert "TLS there, none here" in output and "Traceback" not in output


FOLLOWER = """
import sys, torch
from pathlib import Path
from ratrain.runtime.run.following import Followed
with Followed(Path(sys.argv[1]), "10.96.77.2") as followed:
    step = followed.wait(120)
    torch.save({"step": step, "tensors": dict(followed.tensors())}, sys.argv[2])
"""


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize("tls", ["off", "secret"])
def test_a_follower_on_another_machine_gets_a_whole_version_while_ranks_train(
    tmp_path: Path, tls: str
) -> None:
    keys = (("publish_every", 2), ("publish_nics", "10.96.77.1"), ("tls", tls))
    setting = Setting(
        data=2, sharding=1, steps=100_000, every=2, keep=10_000, train=keys, model=LARGE
    )
    folder, taken = made(tmp_path / "run", setting), tmp_path / "taken.pt"
    rank = [sys.executable, "-m", "ratrain.runtime.rank", str(folder.path)]
    both = "; ".join(f"RANK={n} LOCAL_RANK={n} {shlex.join(rank)} &" for n in range(2))
    both = both.replace("&;", "&")
    private = tmp_path / "private"  # else they would meet over a socket in a folder of both
    private.mkdir()
    words = shlex.join([sys.executable, "-c", FOLLOWER, str(folder.path), str(taken)])
    hidden = f"mount -t tmpfs none {private} && TMPDIR={private} exec {words}"
    follower = ["sh", "-c", hidden]
    with (
        overheard(tmp_path) as heard,
        on_both([["sh", "-c", f"{both} wait"], follower], **SHARED) as children,
    ):
        output, _ = children[1].communicate(timeout=200)
        assert children[1].returncode == 0, output
        steps_then = len(folder.read_metrics())
        wait_until(lambda: len(folder.read_metrics()) > steps_then + 2)  # it goes on
        folder.stop_request.touch()
        assert_well(children[:1])
    got = torch.load(taken)
    saved = trained_model(folder.path, got["step"])
    expected = dict(named_tensors(saved.spec, torch.float32, saved.source))
    assert got["tensors"].keys() == expected.keys()
    assert all(torch.equal(got["tensors"][name], expected[name]) for name in expected)
    assert (in_the_clear(saved, heard) > 0) == (tls == "off")
