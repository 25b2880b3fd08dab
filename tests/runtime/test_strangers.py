"""Strangers at every port of a run: nobody gets in, nothing runs, and training ends as it would."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from launched import assert_same_end, loss_bits, made, ranks_of, start, steps_done, wait_until
from runs_made import Setting
from strangers import Crime, attack, half_open, listening

from ratrain.lab.cluster import Lab
from ratrain.lab.needs import missing
from ratrain.plan.layout.jobs import load_job
from ratrain.runtime.ownership import claim_run
from ratrain.runtime.run.launch import launch
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.secret import read_secret

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
    pytest.mark.skipif(bool(missing()), reason="this machine cannot run a lab"),
]

SETTING = Setting(pipeline=2, data=2, steps=25)
NOBODY = 65534


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = made(tmp_path_factory.mktemp("undisturbed"), SETTING)
    start(folder)
    return folder


@contextmanager
def namespace(name: str, network: int) -> Generator[str]:
    """Another machine, as far as the network goes; this one's address for it."""
    ip = ["ip", "-n", name]
    lines = [
        ["ip", "netns", "add", name],
        ["ip", "link", "add", name, "type", "veth", "peer", "name", "out", "netns", name],
        ["ip", "addr", "add", f"10.97.{network}.1/24", "dev", name],
        ["ip", "link", "set", name, "up"],
        [*ip, "addr", "add", f"10.97.{network}.2/24", "dev", "out"],
        [*ip, "link", "set", "out", "up"],
        [*ip, "link", "set", "lo", "up"],
    ]
    try:
        for line in lines:
            subprocess.run(line, check=True)
        yield f"10.97.{network}.1"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def from_namespace(
    name: str, crime: Path, secret: bytes, address: str, ports: list[int]
) -> dict[int, str]:
    """What another machine meets at these ports of this one."""
    script = Path(__file__).parent / "strangers.py"
    done = subprocess.run(
        ["ip", "netns", "exec", name, sys.executable, script, crime, secret.hex(), address]
        + [str(port) for port in ports],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    return {int(line.split()[0]): line.split()[1] for line in done.stdout.splitlines()}


@contextmanager
def held_before_the_rendezvous(folder: RunFolder, run: Callable[[], None]) -> Generator[list[int]]:
    """While the block runs, rank 1 is stopped before it has met the others, who wait for it; all
    they listen. Then the run goes on to its end."""
    problems: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: 1 in ranks_of(folder))
        os.kill(ranks_of(folder)[1], signal.SIGSTOP)
        listening_pids: dict[int, int] = {}

        def all_listen() -> bool:
            listening_pids.clear()
            listening_pids.update(
                (rank, pid) for rank, pid in ranks_of(folder).items() if rank != 1
            )
            return len(listening_pids) == 3 and all(
                listening([pid]) for pid in listening_pids.values()
            )

        wait_until(all_listen)
        yield [listening_pids[rank] for rank in (0, 2, 3)]
    finally:
        with suppress(KeyError, ProcessLookupError):
            os.kill(ranks_of(folder)[1], signal.SIGCONT)
        wait_until(lambda: steps_done(folder) >= 2 or bool(problems))
        while_training = listening([*ranks_of(folder).values(), os.getpid()])
        thread.join()
    assert not problems, problems[0]
    assert not while_training, "somebody listens while nobody is awaited"


def assert_secret_is_nowhere(folder: RunFolder) -> None:
    """Not in what others see of processes, and not in a file that others may read."""
    secret = read_secret(folder.secret)
    words = [secret, secret.hex().encode()]
    seen = subprocess.run(["ps", "axeww"], capture_output=True, check=True).stdout
    for entry in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            with suppress(OSError):
                seen += (entry / name).read_bytes()
    for path in folder.path.rglob("*"):
        if path.is_file() and path.stat().st_mode & 0o077:
            seen += path.read_bytes()
    assert len(seen) > 10_000 and not any(word in seen for word in words)
    read = subprocess.run(["cat", folder.secret], user=NOBODY, capture_output=True, check=False)
    assert read.returncode and not read.stdout


def test_strangers_on_this_machine_and_on_others_disturb_no_run(
    undisturbed: RunFolder, tmp_path: Path
) -> None:
    folder, crime = made(tmp_path, SETTING), tmp_path / "crime"
    bomb = pickle.dumps(Crime(str(crime)))
    with (
        namespace("rat-stranger", 41) as here,
        held_before_the_rendezvous(folder, lambda: start(folder)) as pids,
    ):
        ports = listening([*pids, os.getpid()])
        assert {address for _, address, _ in ports} == {"127.0.0.1"}
        secret = read_secret(folder.secret)
        far = from_namespace(
            "rat-stranger", crime, secret, here, [port for *_, port in ports] + [29500]
        )
        assert set(far.values()) == {"closed"}
        addresses = [(address, port) for _, address, port in ports]
        with half_open(addresses):
            for address, port in addresses:
                assert attack(address, port, bomb, secret) == "open"
            assert_secret_is_nowhere(folder)
    assert not crime.exists(), "something was unpickled"
    assert loss_bits(folder) == loss_bits(undisturbed)
    assert_same_end(folder, undisturbed)


def test_strangers_in_a_lab_s_network_disturb_no_run(
    undisturbed: RunFolder, tmp_path: Path
) -> None:
    folder, crime = made(tmp_path, SETTING), tmp_path / "crime"
    spec = folder.read_spec()
    cluster = load_job(spec.job_path).cluster.spec
    with claim_run(folder.path, "a test") as claim, Lab(cluster, 4) as lab:

        def run() -> None:
            launch(folder, spec, claim=claim, lab=lab, restarts=0, tick=lambda: None)

        with held_before_the_rendezvous(folder, run) as pids:
            ports = listening(pids)
            places = {place.address: place.namespace for place in lab.places}
            assert {address for _, address, _ in ports} <= set(places)
            secret = read_secret(folder.secret)
            for _, address, port in ports:
                other = next(name for at, name in places.items() if at != address)
                assert from_namespace(other, crime, secret, address, [port]) == {port: "open"}
            assert_secret_is_nowhere(folder)
    assert not crime.exists(), "something was unpickled"
    assert loss_bits(folder) == loss_bits(undisturbed)
    assert_same_end(folder, undisturbed)


def test_strangers_at_net_serve_stay_outside_and_the_check_goes_on(tmp_path: Path) -> None:
    crime, key = tmp_path / "crime", tmp_path / "job.key"
    secret = os.urandom(32)
    key.touch(mode=0o600)
    key.write_text(secret.hex())
    bomb = pickle.dumps(Crime(str(crime)))
    program = [sys.executable, "-c", "from ratrain.cli.main import main; main()", "net"]
    options = ["--secret-file", str(key), "--provider", "sock"]
    files = [tmp_path / f"{name}.json" for name in "ab"]
    agents = [
        subprocess.Popen([*program, "serve", *options, "--name", file.stem, "--out", str(file)])
        for file in files
    ]
    try:
        wait_until(lambda: all(file.exists() and file.stat().st_size for file in files), 60)
        ports = listening([agent.pid for agent in agents])
        assert len(ports) == 2 and {address for _, address, _ in ports} == {"127.0.0.1"}
        numbers = [port for *_, port in ports]
        with namespace("rat-stranger", 42) as here:
            far = from_namespace("rat-stranger", crime, secret, here, numbers)
        assert far == dict.fromkeys(numbers, "closed")
        with half_open([("127.0.0.1", port) for port in numbers]):
            for port in numbers:
                assert attack("127.0.0.1", port, bomb, secret) == "open"
            check = subprocess.run(
                [*program, "check", *options, "--mib", "1", *map(str, files)],
                capture_output=True,
                text=True,
                check=False,
            )
        assert check.returncode == 0, check.stdout + check.stderr
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    assert not crime.exists(), "something was unpickled"
