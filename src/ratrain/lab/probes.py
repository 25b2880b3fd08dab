"""What a lab's limits really do: rates and latency between ports, shares of processors, memory.

Each probe is a small process inside a place: `python -m ratrain.lab.probes NAME NUMBER...`.
Links are measured by processes that stand in the namespace alone, without a limit of
processors: this is about the link.
"""

from __future__ import annotations

import math
import mmap
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ratrain.errors import Infeasible
from ratrain.lab.cluster import Lab, available_memory_bytes
from ratrain.lab.delays import LEAST_S
from ratrain.lab.groups import PERIOD_US, throttled
from ratrain.lab.inside import inside
from ratrain.lab.place import Place, place_to_env
from ratrain.lab.ports import Port

LINK_S, WARM_S, SPIN_S = 0.8, 0.2, 1.0
ROUND_TRIPS_TO_WARM = 20
PATIENCE_S = 20.0
ATTEMPTS = 4
STEP_BYTES = 8 << 20
WITHIN = (0.8, 1.05)  # of the nominal value; TCP over 1500-byte packets reaches 0.953 of a rate
LATENCY_WITHIN = (0.9, 1.1)  # of the file's, from
LEAST_JUDGED_S = 1e-3  # on: below, this machine's own time is too large a part
ROUND_TRIPS_S = 0.5  # how long to exchange messages, for 20 to 200 of them


@dataclass(frozen=True)
class MeasuredLink:
    """The rate of one TCP stream between two ports, and half of a message's round trip, beside the
    cluster file's."""

    source: int  # rank
    target: int
    wanted_bytes_per_s: float
    found_bytes_per_s: float
    wanted_latency_s: float
    found_latency_s: float

    @property
    def is_delayed(self) -> bool:
        """Whether a lab adds such a latency."""
        return self.wanted_latency_s >= LEAST_S

    @property
    def rate_fits(self) -> bool:
        return WITHIN[0] <= self.found_bytes_per_s / self.wanted_bytes_per_s <= WITHIN[1]

    @property
    def latency_fits(self) -> bool:
        """Also where it is too short to be judged."""
        if self.wanted_latency_s < LEAST_JUDGED_S:
            return True
        ratio = self.found_latency_s / self.wanted_latency_s
        return LATENCY_WITHIN[0] <= ratio <= LATENCY_WITHIN[1]

    @property
    def fits(self) -> bool:
        return self.rate_fits and self.latency_fits


@dataclass(frozen=True)
class MeasuredShare:
    """Processors that a spinning process got, and memory that a growing one got."""

    rank: int
    wanted_cpus: float
    found_cpus: float
    throttled_part: float  # of the time's periods in which it used up its share
    wanted_memory_bytes: int
    found_memory_bytes: int | None  # None: too little is free here to try
    oom_kills: int

    @property
    def cpus_fit(self) -> bool:
        return WITHIN[0] <= self.found_cpus / self.wanted_cpus <= WITHIN[1]

    @property
    def starved(self) -> bool:
        """Too little, and not by its own limit: others kept this machine busy."""
        return self.found_cpus < WITHIN[0] * self.wanted_cpus and self.throttled_part < 0.5

    @property
    def memory_fits(self) -> bool:
        """Also where it could not be tried."""
        if self.found_memory_bytes is None:
            return True
        ratio = self.found_memory_bytes / self.wanted_memory_bytes
        return self.oom_kills > 0 and WITHIN[0] <= ratio <= WITHIN[1]

    @property
    def fits(self) -> bool:
        return self.cpus_fit and self.memory_fits


def pairs(lab: Lab) -> list[tuple[Port, Port]]:
    """The pairs to measure: all of four ports or fewer, else a ring; and within a shared port."""
    ports = lab.ports
    if len(ports) <= 4:
        linked = [(a, b) for a in ports for b in ports if a is not b]
    else:
        linked = [(a, ports[(a.index + 1) % len(ports)]) for a in ports]
    return linked + [(port, port) for port in ports if port.inside_bytes_per_s is not None]


def measure_link(lab: Lab, source: Port, target: Port) -> MeasuredLink:
    """The shortest of up to four latencies and the fastest of up to four TCP streams, one after the
    other; the first that fits is enough.

    Whatever else this machine does makes a message later and a stream slower, and nothing makes
    them faster than their link: the fastest says what the link allows.
    """
    sender, receiver = lab.places[source.ranks[0]], lab.places[target.ranks[-1]]
    wanted, latency_s = source.rate_to(target), source.latency_to(target)
    link = MeasuredLink(sender.rank, receiver.rank, wanted, 0.0, latency_s, math.inf)
    for _ in range(ATTEMPTS):
        found_s = _latency_s(sender, receiver, latency_s)
        link = replace(link, found_latency_s=min(link.found_latency_s, found_s))
        if link.latency_fits:
            break
    for _ in range(ATTEMPTS):
        rate = _stream(sender, receiver, wanted, link.found_latency_s)
        link = replace(link, found_bytes_per_s=max(link.found_bytes_per_s, rate))
        if link.rate_fits:
            break
    return link


def _latency_s(sender: Place, receiver: Place, latency_s: float) -> float:
    """Half of the median round trip of one byte."""
    count = str(max(20, min(200, round(ROUND_TRIPS_S / max(2 * latency_s, 1e-4)))))
    with _start(_unlimited(receiver), "return", receiver.address) as mirror:
        port = _line(mirror)
        with _start(_unlimited(sender), "bounce", receiver.address, port, count) as bouncer:
            return float(_line(bouncer)) / 2


def _stream(sender: Place, receiver: Place, wanted: float, latency_s: float) -> float:
    """Bytes per second of one TCP stream of most of a second, counted where it arrives, its first
    part left out: until it has found its speed, which takes round trips.

    Where they are long the kernel chooses the sender's buffer, which must grow beyond what a
    program may ask for.
    """
    buffer = 0 if latency_s >= LEAST_S else max(1 << 16, min(1 << 22, round(wanted * 0.1)))
    warm_s = WARM_S + ROUND_TRIPS_TO_WARM * 2 * latency_s
    with _start(_unlimited(receiver), "receive", receiver.address, str(warm_s)) as counter:
        port = _line(counter)
        with _start(_unlimited(sender), "send", receiver.address, port, str(buffer)):
            return float(_line(counter))


def measure_share(lab: Lab, rank: int) -> MeasuredShare:
    """What the rank's place gives to a process that spins, then to one that grows."""
    place = lab.places[rank]
    before, periods = throttled(place.cgroups), SPIN_S * 1e6 / PERIOD_US
    with _start(place, "spin", str(math.ceil(place.cpus))) as spinner:
        cpus = float(_line(spinner))
    waited = (throttled(place.cgroups) - before) / periods
    reached, kills = _grow_until_killed(lab, place)
    return MeasuredShare(rank, place.cpus, cpus, waited, place.memory_bytes, reached, kills)


def _grow_until_killed(lab: Lab, place: Place) -> tuple[int | None, int]:
    """Bytes that the process had when it ended, and how many kills were counted."""
    if available_memory_bytes() < place.memory_bytes * 1.1:
        return None, 0
    before = lab.oom_kills(place.rank)
    with _start(place, "grow", str(round(place.memory_bytes * 1.1))) as grower:
        assert grower.stdout is not None
        reached = [int(line) for line in grower.stdout]
    return max(reached, default=0), lab.oom_kills(place.rank) - before


def _unlimited(place: Place) -> Place:
    return replace(place, cgroups=())


@contextmanager
def _start(place: Place, *action: str) -> Generator[subprocess.Popen[str]]:
    """A probe at a place. A process group of its own: Ctrl-C reaches the one who measures, which
    then ends the probe."""
    command = [sys.executable, "-P", "-m", "ratrain.lab.probes", *action]
    with subprocess.Popen(
        inside(*command),
        env={**os.environ, **place_to_env(place)},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as probe:
        try:
            yield probe
        except BaseException:
            probe.kill()
            raise


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    text = child.stdout.readline().strip()
    if not text:
        raise Infeasible(
            f"a probe ended with status {child.wait()}",
            place="lab",
            fix="see its message above; try again when less else runs on this machine",
        )
    return text


def return_(address: str) -> None:
    """Listen, say the port, then send each byte back."""
    with _one_stream(address) as stream:
        while received := stream.recv(1):
            stream.sendall(received)


def bounce(address: str, port: int, count: int) -> None:
    """Say the median seconds from sending a byte to having it back."""
    times_s: list[float] = []
    with socket.create_connection((address, port), PATIENCE_S) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            began_s = time.perf_counter()
            stream.sendall(b"1")
            stream.recv(1)
            times_s.append(time.perf_counter() - began_s)
    print(statistics.median(times_s))


@contextmanager
def _one_stream(address: str) -> Generator[socket.socket]:
    """Listen, say the port, and accept one stream."""
    with socket.create_server((address, 0)) as server:
        server.settimeout(PATIENCE_S)
        print(server.getsockname()[1], flush=True)
        stream, _ = server.accept()
    with stream:
        stream.settimeout(PATIENCE_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield stream


def receive(address: str, warm_s: float) -> None:
    """Listen, say the port, then say the bytes per second that came."""
    with _one_stream(address) as stream:
        print(_count(stream, warm_s), flush=True)


def _count(stream: socket.socket, warm_s: float) -> float:
    buffer = bytearray(1 << 18)
    stream.recv_into(buffer)
    start_s = time.monotonic()
    begin_s, received = start_s, 0
    while (now_s := time.monotonic()) < start_s + warm_s + LINK_S:
        count = stream.recv_into(buffer)
        if now_s < start_s + warm_s:
            begin_s = time.monotonic()
        else:
            received += count
    return received / (time.monotonic() - begin_s)


def send(address: str, port: int, buffer_bytes: int) -> None:
    """Send until the other side closes."""
    with socket.create_connection((address, port), PATIENCE_S) as stream:
        if buffer_bytes:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        block = bytes(1 << 18)
        try:
            while True:
                stream.sendall(block)
        except (ConnectionError, TimeoutError):
            return


def spin(processes: int) -> None:
    """Say how many processors this many spinning processes get together."""
    for _ in range(processes - 1):
        if os.fork() == 0:
            _spin_on()
            os._exit(0)
    before, start_s = time.process_time(), time.monotonic()
    _spin_on()
    own_s = time.process_time() - before
    wall_s = time.monotonic() - start_s
    for _ in range(processes - 1):
        os.wait()
    children = os.times()
    print((own_s + children.children_user + children.children_system) / wall_s)


def _spin_on() -> None:
    end_s = time.monotonic() + SPIN_S
    while time.monotonic() < end_s:
        pass


def grow(most_bytes: int) -> None:
    """Take memory and use it, and say how much so far, until killed or at the number given."""
    block = b"\1" * STEP_BYTES
    blocks: list[mmap.mmap] = []
    while len(blocks) * STEP_BYTES < most_bytes:
        blocks.append(mmap.mmap(-1, STEP_BYTES))
        blocks[-1].write(block)
        print(len(blocks) * STEP_BYTES, flush=True)


def main(action: str, *numbers: str) -> None:
    """The probe of that name."""
    if action == "return":
        return_(numbers[0])
    elif action == "bounce":
        bounce(numbers[0], int(numbers[1]), int(numbers[2]))
    elif action == "receive":
        receive(numbers[0], float(numbers[1]))
    elif action == "send":
        send(numbers[0], int(numbers[1]), int(numbers[2]))
    elif action == "spin":
        spin(int(numbers[0]))
    elif action == "grow":
        grow(int(numbers[0]))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:  # as a partner that did not come in time
        sys.exit(f"lab probe {sys.argv[1]}: {error}")
