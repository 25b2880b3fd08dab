"""Collectives of replicas on two hosts with a slow line between them, in a lab.

    python benchmarks/runtime/collectives.py [--rounds 3] [--ranks 2 3 4] [--bytes 8388608]
                                             [--cluster FILE] [--json FILE]

One replica for each rank, as many on each host as `--ranks` says; every rank reduces a gradient in
fp32, and gathers weights of the same bytes. Times are of the slowest rank, medians over a round's
repeats and then over rounds; the collectives take turns, each time in new processes. Across: bytes
that the busiest host sent to the other, counted by the connections, headers included. Predicted:
what the simulator takes for one such reduction (`cost.algorithms.half`). Needs root, as every lab
does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from ratrain.cost.algorithms import ALGORITHMS, half
from ratrain.describe.cluster import ClusterSpec, Device
from ratrain.describe.presets import load_cluster
from ratrain.lab import Lab
from ratrain.lab.crew import run_crew
from ratrain.plan.layout.links import group_among
from ratrain.runtime.secret import read_secret, write_secret

REPEATS = 3
ROOT = Path(__file__).parents[2]

Figures = dict[str, float]
"""Of one rank: seconds of a reduction and of a gather, bytes across of each."""


def rank(folder: Path, by: str, hosts: tuple[int, ...], size_bytes: int) -> Figures:
    """One rank's part of a round."""
    import torch

    from ratrain.program.kind import Lane
    from ratrain.runtime.environment import launch_of
    from ratrain.runtime.rank.joining.handshake import Gate
    from ratrain.runtime.rank.joining.networks import connected
    from ratrain.runtime.rank.joining.rendezvous import join
    from ratrain.runtime.seats import Seats
    from ratrain.runtime.step.network.links import Routes
    from ratrain.runtime.step.network.socket_network import SocketNetwork

    torch.set_num_threads(1)
    launch = launch_of(os.environ)
    joined = join(launch, Gate(read_secret(folder / "secret")), 60)
    seats = Seats(1, len(hosts), (0,) * len(hosts), (0,))
    holders = tuple(range(len(hosts)))
    seat, routes = seats.seat(launch.rank), Routes((), (holders,))
    network, _ = connected(seats, seat, routes, joined, 60.0, hosts)
    assert isinstance(network, SocketNetwork)
    part = size_bytes // 4 // len(hosts) // 64 * 64
    flat = torch.ones(part * len(hosts))
    out = torch.empty(part)

    def across() -> int:
        return sum(
            sent for peer, sent in network.sent_to().items() if hosts[peer] != hosts[launch.rank]
        )

    works = {
        "reduction": lambda: network.reduce(flat, out, holders, by),
        "gather": lambda: network.gather(Lane.GATHER, flat, holders, by),
    }
    figures: Figures = {}
    for name, work in works.items():
        took_s: list[float] = []
        for repeat in range(REPEATS + 1):
            network.barrier()
            began_s, before = time.perf_counter(), across()
            work()
            figures[f"{name} bytes"] = across() - before
            if repeat:  # the first one opens TCP's windows
                took_s.append(time.perf_counter() - began_s)
        figures[f"{name} s"] = median(took_s)
    network.barrier()
    return figures


def devices_of(cluster: ClusterSpec) -> tuple[Device, ...]:
    assert cluster.size is not None
    return cluster.devices(cluster.size)


def hosts_of(devices: Sequence[Device]) -> tuple[int, ...]:
    return tuple(device.host for device in devices)


def one_round(cluster: ClusterSpec, by: str, size_bytes: int) -> Figures:
    """The slowest rank's seconds, and the busiest host's bytes."""
    hosts = hosts_of(devices_of(cluster))
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as place,
        Lab(cluster, len(hosts)) as lab,
    ):
        write_secret(Path(place) / "secret")
        lines: list[tuple[int, bytes]] = []
        asked = [place, by, ",".join(map(str, hosts)), str(size_bytes)]
        command = [sys.executable, __file__, "--rank", *asked]
        endings = run_crew(lab, command, lambda number, line: lines.append((number, line)))
        if any(ending.status for ending in endings):
            sys.exit(b"\n".join(line for _, line in lines).decode())
    of_rank = {number: json.loads(line) for number, line in lines if line.startswith(b"{")}
    figures: Figures = {}
    for name in ("reduction", "gather"):
        figures[f"{name} s"] = max(each[f"{name} s"] for each in of_rank.values())
        figures[f"{name} bytes"] = max(
            sum(each[f"{name} bytes"] for rank, each in of_rank.items() if hosts[rank] == host)
            for host in set(hosts)
        )
    return figures


def predicted_s(cluster: ClusterSpec, by: str, size_bytes: int) -> float:
    """One reduction or gather as the simulator prices it."""
    devices = devices_of(cluster)
    slowest = cluster.link(devices[0], devices[-1])
    group = group_among(cluster, devices, slowest, devices)
    return half(by, size_bytes, group).alone_s(slowest.bandwidth_bytes_per_s)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    asked.add_argument("--bytes", type=int, default=8 << 20)
    asked.add_argument(
        "--cluster", type=Path, default=ROOT / "examples/clusters/two-hosts-lab.toml"
    )
    asked.add_argument("--json", type=Path)
    asked.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)
    chosen = asked.parse_args()
    if chosen.rank:
        folder, by, hosts, size = chosen.rank
        numbers = tuple(map(int, hosts.split(",")))
        print(json.dumps(rank(Path(folder), by, numbers, int(size))), flush=True)
        os._exit(0)
    whole = load_cluster(chosen.cluster)
    all_rows: dict[str, list[Figures]] = {}
    print("| ranks | collective | across | predicted | reduction | gather | ratio |")
    print("|---|---|---|---|---|---|---|")
    for ranks in chosen.ranks:
        cluster = replace(whole, host=tuple(replace(kind, devices=ranks) for kind in whole.host))
        rows: dict[str, list[Figures]] = {by: [] for by in ALGORITHMS}
        for _ in range(chosen.rounds):
            for by, figures in rows.items():
                figures.append(one_round(cluster, by, chosen.bytes))
        for by, figures in rows.items():
            all_rows[f"{ranks} a host, {by}"] = figures
            reduction, gather = (
                median(each[f"{name} s"] for each in figures) for name in ("reduction", "gather")
            )
            expected_s = predicted_s(cluster, by, chosen.bytes)
            sent = max(each["reduction bytes"] for each in figures) / 1e6
            print(
                f"| 2 x {ranks} | {by} | {sent:.2f} MB | {expected_s:.3f} s | {reduction:.3f} s "
                f"| {gather:.3f} s | {(reduction + gather) / 2 / expected_s:.2f} |",
                flush=True,
            )
    if chosen.json:
        chosen.json.write_text(json.dumps(all_rows, indent=1))


if __name__ == "__main__":
    main()
