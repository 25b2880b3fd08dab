"""Labs for real (root): rates, shares and memory hold; nothing is left behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clusters import cluster, device, host, link, plain, text

from ratrain.errors import Infeasible
from ratrain.lab import Lab, groups, place_to_env, record
from ratrain.lab.inside import inside
from ratrain.lab.needs import missing
from ratrain.lab.probes import measure_link, measure_share
from ratrain.lab.wires import CONGESTION, DATA_INTERFACE

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(missing()), reason=f"no lab on this machine: {'; '.join(missing())}"),
]

RATRAIN = [sys.executable, "-c", "from ratrain.cli.main import main; main()"]
ENTER = "import os; from ratrain.lab import *; enter(place_from_env(os.environ)); "


def leftovers(name: str) -> list[str]:
    """Namespaces, interfaces, groups and records with the lab's name or its process id."""
    pid = name.split("-")[1]
    spaces = [p.name for p in Path("/run/netns").glob(f"{name}*")]
    interfaces = [p.name for p in Path("/sys/class/net").glob(f"rl{pid}.*")]
    files = [*Path("/sys/fs/cgroup").rglob(name), *record.FOLDER.glob(f"{name}.json")]
    return [*spaces, *interfaces, *map(str, files)]


def name_of(lab: Lab) -> str:
    return lab.places[0].namespace.rsplit("-", 1)[0]


def python(lab: Lab, rank: int, code: str, wrap: Callable[..., list[str]] = inside) -> str:
    """What a Python program at the rank's place prints."""
    done = subprocess.run(
        wrap(sys.executable, "-c", code),
        env={**os.environ, **place_to_env(lab.places[rank])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def bare(*command: str) -> list[str]:
    return list(command)


def run_lab(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RATRAIN, "lab", *words], capture_output=True, text=True, check=False)


@pytest.fixture
def small_file(tmp_path: Path) -> str:
    """Two hosts on a slow network, as a file."""
    file = tmp_path / "small.toml"
    file.write_text(text(device(), host(), link()))
    return str(file)


def test_tcp_between_places_has_the_same_congestion_control_whatever_the_host_has() -> None:
    listen = (
        "import socket; s = socket.create_server(('', 7000)); c, _ = s.accept();"
        "print(c.getsockopt(6, socket.TCP_CONGESTION, 16).rstrip(b'\\0').decode())"
    )
    connect = (
        "import socket, time\n"
        "while True:\n"
        "    try: c = socket.create_connection(('ADDRESS', 7000)); break\n"
        "    except ConnectionError: time.sleep(0.05)\n"
        "print(c.getsockopt(6, socket.TCP_CONGESTION, 16).rstrip(b'\\0').decode())"
    )
    with Lab(plain(), 2) as lab, ThreadPoolExecutor() as beside:
        for near in (0, 1):  # over the wire, and within a place
            taken = beside.submit(python, lab, 1, ENTER + listen)
            given = python(lab, near, ENTER + connect.replace("ADDRESS", lab.places[1].address))
            assert [given.strip(), taken.result().strip()] == [CONGESTION] * 2


@pytest.mark.slow
def test_half_a_processor_stands_still_about_twice_as_long_as_it_works_beside() -> None:
    with Lab(cluster(device(cpus=0.5), host(), link()), 2) as lab:
        code = "from ratrain.profile.driving import stall_of; print(stall_of(1))"
        assert 1.5 < float(python(lab, 0, ENTER + code)) < 3


@pytest.mark.slow
def test_every_link_is_as_fast_as_its_file_says() -> None:
    far = cluster(
        device(), host(), host(count=1, site="there"), link(), link("world", "20Mbit/s", "device")
    )
    with Lab(far, 3) as lab:
        near, other, there = lab.ports
        for source, sink in ((near, other), (other, near), (near, there), (there, other)):
            measured = measure_link(lab, source, sink)
            assert 0.8 <= measured.found_bytes_per_s / measured.wanted_bytes_per_s <= 1.05


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("rate", ["20Mbit/s", "100Mbit/s", "200Mbit/s", "1Gbit/s"])
def test_a_slow_port_passes_what_tcp_hands_it_without_cutting_it_into_packets(rate: str) -> None:
    with Lab(cluster(device(), host(), link("room", rate)), 2) as lab:
        before_bytes, before_packets = _sent(lab)
        measure_link(lab, *lab.ports)
        sent_bytes, packets = _sent(lab)
    assert (sent_bytes - before_bytes) / (packets - before_packets) > 4 * 1514


def _sent(lab: Lab) -> tuple[int, int]:
    """Bytes and packets that have left the first port."""
    show = ["ip", "-n", lab.places[0].namespace, "-s", "-j", "link", "show", DATA_INTERFACE]
    sent = json.loads(subprocess.check_output(show))[0]["stats64"]["tx"]
    return sent["bytes"], sent["packets"]


@pytest.mark.slow
def test_ranks_of_one_host_share_its_port() -> None:
    """Both send at once to another host each; together they get one port's rate."""
    receive = (
        "import socket, time; s = socket.create_server(('', 7000)); c, _ = s.accept(); n = 0;"
        "b = c.recv(65536); t = time.monotonic();\n"
        "while time.monotonic() < t + 1.5: n += len(c.recv(65536))\n"
        "print(n / (time.monotonic() - t))"
    )
    send = (
        "import socket, sys, time; end = time.monotonic() + 10;\n"
        "while True:\n"
        "    try: c = socket.create_connection((sys.argv[1], 7000)); break\n"
        "    except ConnectionError: assert time.monotonic() < end; time.sleep(0.05)\n"
        "try:\n"
        "    while True: c.sendall(bytes(65536))\n"
        "except ConnectionError: pass"
    )

    def start(lab: Lab, rank: int, *words: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **place_to_env(lab.places[rank])}
        command = inside(sys.executable, "-c", *words)
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    with Lab(cluster(device(cpus=1.0), host(devices=2, count=3), link()), 6) as lab:
        assert lab.places[0].namespace == lab.places[1].namespace
        takers = [start(lab, rank, receive) for rank in (2, 4)]
        givers = [start(lab, r, send, lab.places[to].address) for r, to in ((0, 2), (1, 4))]
        rates = [float(taker.communicate()[0]) for taker in takers]
        for giver in givers:
            giver.wait()
    assert 0.8 <= sum(rates) / 12.5e6 <= 1.1


@pytest.mark.slow
def test_a_place_gives_no_more_than_its_processors_and_kills_at_its_memory() -> None:
    with Lab(plain(), 2) as lab:
        share = measure_share(lab, 1)
        assert share.found_cpus <= 0.55
        assert share.found_cpus >= 0.4 or share.starved
        assert share.found_memory_bytes is not None
        assert 0.7 <= share.found_memory_bytes / 150e6 <= 1.0
        assert (lab.oom_kills(0), lab.oom_kills(1)) == (0, 1)


def test_every_rank_reaches_the_launcher_and_no_other_rank_round_the_slow_network() -> None:
    ask = "import socket; print(socket.create_connection(('{}', {}), 5).recv(99).decode())"
    with Lab(plain(), 2) as lab:
        with socket.create_server((lab.master_address, 0)) as server:
            code = ask.format(lab.master_address, server.getsockname()[1])
            child = subprocess.Popen(
                inside(sys.executable, "-c", code),
                env={**os.environ, **place_to_env(lab.places[1])},
                stdout=subprocess.PIPE,
                text=True,
            )
            stream, (address, _) = server.accept()
            stream.sendall(b"hello")
            stream.close()
            assert child.communicate()[0].strip() == "hello"
        assert address != lab.places[1].address  # it came over the control network
        reach = f"import socket; print(socket.socket().connect_ex(('{address}', 7)))"
        first = f"import socket; socket.setdefaulttimeout(0.5); {reach}"
        assert int(python(lab, 0, first)) != 111  # refused would mean: reached
        assert int(python(lab, 0, first.replace(address, lab.places[1].address))) == 111


def test_entering_twice_does_nothing_and_entering_another_place_is_refused() -> None:
    with Lab(plain(devices=2), 4) as lab:
        for rank in (1, 2):  # of the same namespace, of another
            other = json.dumps(place_to_env(lab.places[rank]))
            code = (
                f"{ENTER}enter(place_from_env(os.environ)); import json\n"
                f"try: enter(place_from_env(json.loads({other!r})))\n"
                "except Exception as error: print(error)"
            )
            assert "already at another place" in python(lab, 0, code, bare)


def test_a_process_with_threads_may_not_enter() -> None:
    code = (
        "import threading, time; threading.Thread(target=time.sleep, args=(1,)).start()\n"
        f"try: {ENTER}\nexcept Exception as error: print(error)"
    )
    with Lab(plain(), 2) as lab:
        assert "2 threads cannot enter" in python(lab, 0, code, bare)


def test_two_labs_stand_side_by_side_and_nothing_of_them_is_left() -> None:
    with Lab(plain(), 2) as first, Lab(plain(), 2) as second:
        names = [name_of(first), name_of(second)]
        assert names[0] != names[1]
        assert first.master_address != second.master_address
        assert all(leftovers(name) for name in names)
    assert [leftovers(name) for name in names] == [[], []]


def test_an_error_and_a_running_process_leave_nothing_behind() -> None:
    name, child = "", None
    with pytest.raises(ZeroDivisionError), Lab(plain(), 2) as lab:
        name = name_of(lab)
        child = subprocess.Popen(
            [sys.executable, "-c", f"{ENTER}print(flush=True); import time; time.sleep(100)"],
            env={**os.environ, **place_to_env(lab.places[0])},
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.readline()
        raise ZeroDivisionError
    assert child is not None
    assert child.wait() == -signal.SIGKILL
    assert leftovers(name) == []


def test_a_cluster_that_cannot_be_made_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`tc` stands first in the path as a program that fails, after the trial of what is needed."""
    fake = tmp_path / "tc"
    fake.write_text('#!/bin/sh\ncase "$*" in *batch*) exit 1;; esac\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(Infeasible, match="tc"), Lab(plain(), 2):
        pass
    assert leftovers(f"ratlab-{os.getpid()}-0") == []


def wait_for_lab(maker: subprocess.Popen[str], output: str) -> str:
    """The name of the lab of a `ratrain lab run`, once all its ranks have said `output`."""
    assert maker.stdout is not None
    lines = [maker.stdout.readline() for _ in range(2)]
    assert all(output in line for line in lines), lines
    return f"ratlab-{maker.pid}-0"


def start_run(small_file: str) -> subprocess.Popen[str]:
    words = ["lab", "run", small_file, "--", "sh", "-c", "echo up; sleep 100 & sleep 100"]
    return subprocess.Popen([*RATRAIN, *words], stdout=subprocess.PIPE, text=True)


def test_a_killed_maker_s_lab_is_removed_by_clean(small_file: str) -> None:
    maker = start_run(small_file)
    name = wait_for_lab(maker, "up")
    maker.kill()
    maker.wait()
    assert leftovers(name) != []
    assert name in run_lab("clean").stdout
    assert leftovers(name) == []


def test_a_process_that_joins_a_group_while_it_is_removed_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = groups.make(groups.here()[0], f"ratlab-{os.getpid()}-late", 0, 0.5, 50_000_000)
    remove = Path.rmdir
    late: list[subprocess.Popen[bytes]] = []

    def joined_then_removed(group: Path) -> None:
        if not late:
            late.append(subprocess.Popen(["sleep", "100"]))
            (group / "cgroup.procs").write_text(str(late[0].pid))
        remove(group)

    monkeypatch.setattr(Path, "rmdir", joined_then_removed)
    groups.remove(folder.parent)
    assert late[0].wait() == -signal.SIGKILL
    assert not folder.parent.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_lab_and_all_in_it(small_file: str, number: signal.Signals) -> None:
    maker = start_run(small_file)
    name = wait_for_lab(maker, "up")
    maker.send_signal(number)
    assert maker.wait() == 128 + number
    assert leftovers(name) == []


def test_each_rank_runs_with_its_number_and_rank_0_s_address(small_file: str) -> None:
    shown = "echo $RANK/$WORLD_SIZE $MASTER_ADDR $RATRAIN_INTERFACE $GLOO_SOCKET_IFNAME"
    done = run_lab("run", small_file, "--", "sh", "-c", shown)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] {rank}/2 10.88.0.1 lab0 lab0" for rank in range(2)
    ]


def test_one_rank_that_fails_ends_the_others_and_gives_its_status(small_file: str) -> None:
    done = run_lab(
        "run", small_file, "--json", "--", "sh", "-c", "test $RANK = 0 && exit 7; sleep 100"
    )
    assert done.returncode == 7
    endings = json.loads(done.stdout)["ranks"]
    assert [ending["stopped"] for ending in endings] == [False, True]


def test_a_rank_killed_for_memory_is_named(small_file: str) -> None:
    grow = "import os\nkept = []\nwhile os.environ['RANK'] == '1': kept.append(b'1' * (1 << 23))"
    done = run_lab("run", small_file, "--", sys.executable, "-c", grow)
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 ended with status 137: killed, as it needed more" in done.stderr


def test_a_program_that_does_not_exist_is_one_line(small_file: str) -> None:
    done = run_lab("run", small_file, "--", "no-such-program")
    assert done.returncode == 127
    assert "no-such-program: No such file or directory" in done.stdout


@pytest.mark.slow
def test_check_measures_each_pair_and_each_place(small_file: str) -> None:
    done = run_lab("check", small_file, "--json")
    body = json.loads(done.stdout)
    assert [(row["source"], row["target"]) for row in body["links"]] == [(0, 1), (1, 0)]
    assert all(row["fits"] for row in body["links"])
    assert [row["oom_kills"] for row in body["places"]] == [1, 1]
    assert done.returncode == (0 if all(row["fits"] for row in body["places"]) else 1)
