"""Reductions among replicas under each of TCP's congestion controls, in a lab.

    python benchmarks/runtime/congestion.py [--rounds 3] [--json FILE]

Each row is one group of ranks with half a processor and one link each: every rank computes
products of matrices while its other thread reduces seven units, as at the end of a training step.
`needed` is what the bytes take at the 95.3 % of the rate that TCP carries. The congestion controls
take turns, each time in new processes; a figure is the slowest rank's, the median over rounds, then
over what was needed. Needs root, as every lab does.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ratrain.describe.presets import load_cluster
from ratrain.lab import Lab
from ratrain.lab.crew import run_crew
from ratrain.runtime.secret import read_secret, write_secret

UNITS, REPEATS = 7, 6
CARRIED = 0.953
CLUSTER = Path(__file__).parents[2] / "examples/clusters/quickstart-lab.toml"


@dataclass(frozen=True)
class Group:
    """Replicas that reduce units of that many bytes over links of that rate."""

    replicas: int
    megabits_per_s: int
    unit_bytes: int

    @property
    def name(self) -> str:
        size = self.unit_bytes / 1e6
        return f"{self.replicas} ranks, {self.megabits_per_s} Mbit/s, {size:g} MB a unit"

    @property
    def needed_s(self) -> float:
        sent = UNITS * self.unit_bytes * (self.replicas - 1) / self.replicas
        return sent / (self.megabits_per_s * 1e6 / 8 * CARRIED)


GROUPS = (
    Group(2, 100, 4_500_000),
    Group(3, 100, 2_000_000),
    Group(4, 300, 4_000_000),
    Group(2, 1000, 8_000_000),
)


def rank(folder: Path, group: Group, congestion: str) -> list[float]:
    """One rank's part of a round: the seconds of each repetition but the first."""
    import torch

    from ratrain.runtime.environment import launch_of
    from ratrain.runtime.rank.joining.handshake import Gate
    from ratrain.runtime.rank.joining.networks import connected
    from ratrain.runtime.rank.joining.rendezvous import join
    from ratrain.runtime.seats import Seats
    from ratrain.runtime.step.network import connection
    from ratrain.runtime.step.network.links import Routes

    def chosen(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())

    connection.choose_congestion = chosen
    torch.set_num_threads(1)
    launch = launch_of(os.environ)
    joined = join(launch, Gate(read_secret(folder / "secret")), 60)
    seats = Seats(1, group.replicas, (0,) * group.replicas, (0,))
    seat = seats.seat(launch.rank)
    holders = tuple(seats.world_rank(0, data, 0) for data in range(group.replicas))
    routes = Routes(set(), (holders,))
    network, _ = connected(seats, seat, routes, joined, 60.0)
    elements = group.unit_bytes // 4 // group.replicas * group.replicas
    units = [torch.ones(elements) for _ in range(UNITS)]

    def repetition() -> float:
        done = threading.Event()
        computing = threading.Thread(target=_compute, args=(done,))
        network.barrier()
        computing.start()
        began_s = time.perf_counter()
        for unit in units:
            network.reduce(unit, unit[: elements // group.replicas], holders)
        took_s = time.perf_counter() - began_s
        done.set()
        computing.join()
        return took_s

    took_s = [repetition() for _ in range(REPEATS)][1:]
    network.barrier()
    return took_s


def _compute(done: threading.Event) -> None:
    import torch

    matrix = torch.ones(256, 256)
    while not done.is_set():
        torch.mm(matrix, matrix)


def round_of(group: Group, congestion: str) -> list[float]:
    """The slowest rank's seconds, repetition by repetition."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        folder = Path(place)
        cluster = folder / "cluster.toml"
        cluster.write_text(
            CLUSTER.read_text().replace("100Mbit/s", f"{group.megabits_per_s}Mbit/s")
        )
        write_secret(folder / "secret")
        lines: list[bytes] = []
        asked = [place, str(GROUPS.index(group)), congestion]
        with Lab(load_cluster(cluster), group.replicas) as lab:
            command = [sys.executable, __file__, "--rank", *asked]
            endings = run_crew(lab, command, lambda _rank, line: lines.append(line))
        if any(ending.status for ending in endings):
            sys.exit(b"\n".join(lines).decode())
    ranks = [json.loads(line) for line in lines if line.startswith(b"[")]
    return [max(each) for each in zip(*ranks, strict=True)]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--json", type=Path)
    asked.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    chosen = asked.parse_args()
    if chosen.rank:
        folder, group, congestion = chosen.rank
        print(json.dumps(rank(Path(folder), GROUPS[int(group)], congestion)), flush=True)
        os._exit(0)
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    took: dict[str, dict[str, list[float]]] = {}
    print(f"{'':40s}{'needed':>9s}" + "".join(f"{name:>15s}" for name in available))
    for group in GROUPS:
        row = took[group.name] = {name: list[float]() for name in available}
        for _ in range(chosen.rounds):
            for name in available:
                row[name] += round_of(group, name)
        cells = "".join(
            f"{median(each):8.3f} ({median(each) / group.needed_s:.2f})" for each in row.values()
        )
        print(f"{group.name:40s}{group.needed_s:7.3f} s{cells}", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(took, indent=1))


if __name__ == "__main__":
    main()
