"""Far hosts for real (root): a lab's relay adds the file's latency, and goes with its lab."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from clusters import apart, device, host, link, plain, text

from ratrain.errors import Infeasible
from ratrain.lab import Lab, place_to_env, record, relay_order
from ratrain.lab.inside import inside
from ratrain.lab.needs import missing, missing_for_latency
from ratrain.lab.probes import LATENCY_WITHIN, measure_link

REASONS = "; ".join(missing()) or missing_for_latency()
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(REASONS), reason=f"no latency on this machine: {REASONS}"),
]

RATRAIN = [sys.executable, "-c", "from ratrain.cli.main import main; main()"]


def relays(maker: int) -> list[int]:
    """The processes that relay for that maker's labs."""
    pids: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue
        orders = [word for word in words if word.startswith('{"maker"')]
        if "ratrain.lab.relay" in words and json.loads(orders[0])["maker"] == maker:
            pids.append(int(folder.name))
    return pids


def wait_for_no_relay(maker: int) -> None:
    end_s = time.monotonic() + 20
    while relays(maker):
        assert time.monotonic() < end_s, "a relay is left"
        time.sleep(0.02)


def start(lab: Lab, rank: int, code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        inside(sys.executable, "-c", code, *words),
        env={**os.environ, **place_to_env(lab.places[rank])},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_far_hosts_are_as_far_as_the_file_says_and_their_links_as_fast() -> None:
    with Lab(apart("20ms", "40Mbit/s"), 3) as lab:
        near, other, there = lab.ports
        for source, target in ((near, there), (there, other)):
            measured = measure_link(lab, source, target)
            ratio = measured.found_latency_s / 0.02
            assert LATENCY_WITHIN[0] <= ratio <= LATENCY_WITHIN[1]
            assert measured.rate_fits, measured
        beside = measure_link(lab, near, other)
        assert beside.found_latency_s < 0.01  # half of what the far ones have
        assert beside.rate_fits, beside


def test_packets_arrive_in_the_order_in_which_they_were_sent() -> None:
    take = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 7000));"
        "s.settimeout(20); print('up', flush=True); came = []\n"
        "while (packet := s.recv(2000)) != b'end': came.append(int(packet[:9]))\n"
        "print(came)"
    )
    give = (
        "import socket, sys, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        "s.connect((sys.argv[1], 7000))\n"
        "for n in range(1200):\n"
        "    s.send(b'%09d' % n + bytes(n % 1300))\n"
        "    if n % 20 == 0: time.sleep(0.005)\n"
        "for _ in range(5): time.sleep(0.1); s.send(b'end')"
    )
    with Lab(apart("5ms", "40Mbit/s"), 3) as lab:
        taker = start(lab, 2, take)
        assert taker.stdout is not None
        assert taker.stdout.readline() == "up\n"
        giver = start(lab, 0, give, lab.places[2].address)
        came = json.loads(taker.communicate()[0])
        giver.wait()
    assert came == sorted(came)
    assert len(came) > 1000


def test_a_relay_runs_outside_of_every_rank_s_groups_and_ends_with_its_lab() -> None:
    with Lab(apart(), 3) as lab:
        (relay,) = relays(os.getpid())
        groups = Path(f"/proc/{relay}/cgroup").read_text()
        assert "/relay" in groups
        taken = {"/".join(Path(group).parts[-2:]) for p in lab.places for group in p.cgroups}
        assert not any(line.endswith(tuple(taken)) for line in groups.splitlines())
    assert relays(os.getpid()) == []


def test_a_lab_without_far_hosts_has_no_relay_and_no_tap() -> None:
    with Lab(plain(), 2) as lab:
        assert relays(os.getpid()) == []
        bridge = f"{lab.places[0].namespace.rsplit('-', 1)[0]}-net"
        shown = subprocess.run(["ip", "-n", bridge, "link"], capture_output=True, check=True)
        assert b"delay" not in shown.stdout


def start_run(tmp_path: Path) -> subprocess.Popen[str]:
    file = tmp_path / "far.toml"
    hosts = host(count=1) + host(count=1, site="there")
    file.write_text(text(device(), hosts, link("world", latency="5ms")))
    command = [*RATRAIN, "lab", "run", str(file), "--", "sh", "-c", "echo up; sleep 100"]
    maker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    assert maker.stdout.readline().strip().endswith("up")
    return maker


def test_a_killed_maker_s_relay_ends_by_itself(tmp_path: Path) -> None:
    maker = start_run(tmp_path)
    assert len(relays(maker.pid)) == 1
    maker.kill()
    maker.wait()
    wait_for_no_relay(maker.pid)
    assert f"ratlab-{maker.pid}-0" in record.clean()


def test_clean_ends_a_killed_lab_s_relay_that_does_not_run(tmp_path: Path) -> None:
    maker = start_run(tmp_path)
    os.kill(relays(maker.pid)[0], signal.SIGSTOP)
    maker.kill()
    maker.wait()
    assert len(relays(maker.pid)) == 1
    assert f"ratlab-{maker.pid}-0" in record.clean()
    wait_for_no_relay(maker.pid)


def test_a_relay_that_ended_by_itself_is_an_error_when_its_lab_ends() -> None:
    with (
        pytest.raises(Infeasible, match="ended by itself, with signal 9"),
        Lab(apart(), 3),
    ):
        (relay,) = relays(os.getpid())
        os.kill(relay, signal.SIGKILL)
        os.waitid(os.P_PID, relay, os.WEXITED | os.WNOWAIT)


def test_without_tap_interfaces_a_lab_stands_and_says_that_it_adds_no_latency(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(relay_order, "TUN", tmp_path / "tun")
    with Lab(apart(), 3) as lab:
        assert lab.without_latency.startswith("no tap interfaces")
        assert any("not the file's: no tap" in line for line in lab.limits())
        assert relays(os.getpid()) == []
