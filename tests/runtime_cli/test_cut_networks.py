"""Hosts on two networks, one of which is cut while they train: the run goes on over the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_runs import CONFIG, JOB, ratrain, start, steps_done, wait_until, write_job
from hosts import ip
from test_survive import CLUSTER, HOST

from ratrain.runtime.run_folder import RunFolder

HOSTS = ("birch", "oak")
NETWORKS = {name: f"rat-cut-{name}-{os.getpid()}" for name in HOSTS}
RSH = """#!/bin/sh
# As ssh: words that a shell is to run on the host of an address.
case $1 in *.1) name=birch net={birch};; *) name=oak net={oak};; esac
shift
exec nsenter --net=/run/netns/$net unshare --uts sh -c "hostname $name; $*"
"""


def at(network: int, host: str) -> str:
    return f"10.78.{network}.{HOSTS.index(host) + 1}"


@contextmanager
def two_networks() -> Generator[None]:
    """The hosts, in two networks each."""
    try:
        for name in HOSTS:
            ip("netns", "add", NETWORKS[name])
            ip("-n", NETWORKS[name], "link", "set", "lo", "up")
        for network in range(2):
            wire, (one, other) = f"net{network}", NETWORKS.values()
            ip("-n", one, "link", "add", wire, "type", "veth", "peer", "name", wire, "netns", other)
            for name in HOSTS:
                address = f"{at(network, name)}/24"
                ip("-n", NETWORKS[name], "address", "add", address, "dev", wire)
                ip("-n", NETWORKS[name], "link", "set", wire, "up")
        yield
    finally:
        for name in HOSTS:
            subprocess.run(["ip", "netns", "delete", NETWORKS[name]], check=False)


def brought(network: int) -> int:
    """Bytes that a network has brought to the first host."""
    words = ["ip", "-n", NETWORKS["birch"], "-j", "-s", "link", "show", f"net{network}"]
    return json.loads(subprocess.check_output(words))[0]["stats64"]["rx"]["bytes"]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")
def test_a_run_goes_on_over_the_networks_that_are_left_and_loses_no_step(tmp_path: Path) -> None:
    job, run = write_job(tmp_path), RunFolder(tmp_path / "run")
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 128}))
    (tmp_path / "cluster.toml").write_text(CLUSTER + "".join(HOST.format(name=n) for n in HOSTS))
    text = JOB.format(steps=100_000, pipeline=1, data=2).replace('"cpu-lab"', '"cluster.toml"')
    job.write_text(text.replace("[schedule]\n", "[schedule]\nsharding = 1\nmirror = true\n"))
    made = ratrain(tmp_path, "train", job, "--run", run.path, "--prepare-only", "--no-calibrate")
    assert made.status == 0, made.err
    rsh = tmp_path / "rsh.sh"
    rsh.write_text(RSH.format(**NETWORKS))
    rsh.chmod(0o755)
    told: list[str] = []
    places = [word for n in HOSTS for word in ("--at", f"{n}={at(0, n)},{at(1, n)}")]
    words = ("launch", run.path, "--rsh", rsh, "--restarts", "3", *places)
    with two_networks():
        launch = start(tmp_path, *words, PYTHONPATH=os.pathsep.join(sys.path))
        assert launch.stderr is not None
        threading.Thread(target=told.extend, args=(launch.stderr,), daemon=True).start()
        wait_until(lambda: steps_done(run.path) > 20 and brought(1) > 1 << 17, launch)
        ip("-n", NETWORKS["oak"], "link", "set", "net1", "down")
        wait_until(lambda: "start 2 of 4" in "".join(told), launch)
        done = steps_done(run.path)
        wait_until(lambda: steps_done(run.path) > done + 5, launch)
        launch.send_signal(signal.SIGTERM)
        assert launch.wait(timeout=60) == 75, told
    said = "".join(told)
    assert "acknowledges nothing from 10.78.1." in said, said
    assert "bytes go over the other networks" in said
    assert "the run goes on from what the survivors hold" in run.notes.read_text()
    steps = [row["step"] for row in run.read_metrics()]
    assert steps == list(range(len(steps)))
    assert run.read_spec().seats.world_size == 2
