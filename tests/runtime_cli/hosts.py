"""Hosts made of this machine: a host name and a view of the disks for each, in a network of their
own, and a real torchrun."""

from __future__ import annotations

import os
import random
import shlex
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("birch", "oak", "pine")
ADDRESS = "10.77.0.1"
"""Of the hosts' network, in which all of them are: ranks on several hosts refuse a loopback."""
NETWORK = f"rat-hosts-{os.getpid()}"


@dataclass
class Host:
    """A host's own disk is seen at `place` by its processes alone; None: it has none."""

    name: str
    disk: Path | None
    place: Path
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a command there to its end."""
        return subprocess.run(
            self._entered(command), capture_output=True, text=True, env=_environment(), timeout=110
        )

    def start(self, *command: str | Path) -> None:
        self.process = subprocess.Popen(
            self._entered(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(),
        )

    def ended(self) -> tuple[int, str]:
        """The exit status of what was started, and what it said on stderr."""
        assert self.process is not None
        _, err = self.process.communicate(timeout=110)
        return self.process.returncode, err

    def _entered(self, command: Sequence[str | Path]) -> list[str]:
        steps = [f"hostname {self.name}"]
        if self.disk is not None:
            steps.append(
                f"mount --bind {shlex.quote(str(self.disk))} {shlex.quote(str(self.place))}"
            )
        steps.append(f"exec {shlex.join(map(str, command))}")
        network = ["nsenter", f"--net=/run/netns/{NETWORK}"]
        return [*network, "unshare", "--mount", "--uts", "sh", "-ec", "; ".join(steps)]


def made_hosts(folder: Path, count: int, *, shared: bool) -> list[Host]:
    """Hosts that see `folder/place`: the same one, or each a disk of its own."""
    place = folder / "place"
    place.mkdir(parents=True, exist_ok=True)
    hosts: list[Host] = []
    for name in NAMES[:count]:
        disk = None if shared else folder / f"disk-{name}"
        if disk is not None:
            disk.mkdir(exist_ok=True)
        hosts.append(Host(name, disk, place))
    return hosts


def torchrun(hosts: Sequence[Host], ranks_each: int, run: Path, *more: str) -> None:
    """Starts `torchrun ... -m ratrain.runtime.rank RUN` on every host, as people type it."""
    port = free_port()
    for number, host in enumerate(hosts):
        host.start(
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", str(len(hosts)), "--nproc-per-node", str(ranks_each)),
            *("--node-rank", str(number), "--master-addr", ADDRESS),
            *("--master-port", str(port), *more),
            *("-m", "ratrain.runtime.rank", str(run)),
        )


@contextmanager
def network() -> Generator[None]:
    """The network namespace that hosts run in."""
    ip("netns", "add", NETWORK)
    try:
        ip("-n", NETWORK, "link", "set", "lo", "up")
        ip("-n", NETWORK, "address", "add", f"{ADDRESS}/32", "dev", "lo")
        yield
    finally:
        ip("netns", "delete", NETWORK)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def end(hosts: Sequence[Host]) -> None:
    """Ends what still runs."""
    for host in hosts:
        if host.process is not None and host.process.poll() is None:
            host.process.kill()
            host.process.communicate()


def free_port() -> int:
    """One that is free together with the next, of those that the system gives to nobody."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000, 2)
        with suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("0.0.0.0", port))
            second.bind(("0.0.0.0", port + 1))
            return port


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def ranks_of(run: Path) -> dict[int, int]:
    """World rank -> process id, of a run's ranks on all hosts."""
    pids: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            if b"ratrain.runtime.rank" not in words or str(run).encode() not in words:
                continue
            if b"torch.distributed.run" in words:
                continue
            pairs = path.with_name("environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair).get(b"RANK")
        if rank is not None:
            pids[int(rank)] = int(path.parent.name)
    return pids
