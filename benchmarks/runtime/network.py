"""Messages, reductions and control rounds of ranks on CPUs: our sockets beside gloo, in a lab.

    python benchmarks/runtime/network.py [--rounds 5] [--cluster FILE] [--json FILE]

Four ranks, two stages of two replicas, with the cluster file's links and shares of processors (the
quick start's: half a processor and 100 Mbit/s each). The two networks take turns, each time in new
processes. Figures are medians over rounds; processor time is the whole process's, kernel included.
Needs root, as every lab does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

from ratrain.describe.presets import load_cluster
from ratrain.lab import Lab
from ratrain.lab.crew import run_crew
from ratrain.runtime.secret import read_secret, write_secret

KINDS = ("sockets", "gloo")
PIPELINE, DATA = 2, 2
REPEATS = 15
MESSAGES = (4 << 10, 256 << 10, 2 << 20)
REDUCTIONS = (64 << 10, 1 << 20, 8 << 20)
ROOT = Path(__file__).parents[2]

Figures = dict[str, tuple[float, float]]
"""By what was done: (seconds, seconds of processor time), each once."""


def rank(folder: Path, kind: str) -> Figures:
    """One rank's part of a round; rank 2 receives messages from rank 0."""
    import torch
    from torch_network import gloo_network

    from ratrain.program.kind import Lane
    from ratrain.runtime.environment import launch_of
    from ratrain.runtime.rank.joining.handshake import Gate
    from ratrain.runtime.rank.joining.networks import connected
    from ratrain.runtime.rank.joining.rendezvous import join
    from ratrain.runtime.seats import Seats
    from ratrain.runtime.step.network.broadcast import summed
    from ratrain.runtime.step.network.links import Routes

    torch.set_num_threads(1)
    launch = launch_of(os.environ)
    joined = join(launch, Gate(read_secret(folder / "secret")), 60)
    seats = Seats(PIPELINE, DATA, (0,) * DATA, (0,))
    seat = seats.seat(launch.rank)
    groups = [
        tuple(seats.world_rank(pipeline, data, 0) for data in range(DATA))
        for pipeline in range(PIPELINE)
    ]
    holders, routes = groups[seat.pipeline], Routes({(0, 1)}, tuple(groups))
    if kind == "sockets":
        network, _ = connected(seats, seat, routes, joined, 60.0)
    else:
        network = gloo_network(folder, seats, seat, routes, joined, 60.0)

    def message(tensor: torch.Tensor) -> None:
        if seat.pipeline == 0:
            network.send(Lane.SEND_F, tensor, 1)
        else:
            network.await_sender(Lane.RECV_F, 0)
            network.receive(Lane.RECV_F, tensor, 0)

    def reduce(tensor: torch.Tensor) -> None:
        network.reduce(tensor, tensor[: len(tensor) // DATA], holders)

    def control(tensor: torch.Tensor) -> None:
        network.combine(None, tensor, summed)

    figures: Figures = {}
    works: list[tuple[str, Callable[[torch.Tensor], None], tuple[int, ...]]] = [
        ("message", message, MESSAGES),
        ("reduction", reduce, REDUCTIONS),
        ("control round", control, (104,)),
    ]
    for name, work, sizes in works:
        for size in sizes:
            tensor = torch.ones(size // 4)
            took_s: list[float] = []
            worked_s: list[float] = []
            for _ in range(REPEATS):
                network.barrier()
                began_s, worked = time.perf_counter(), time.process_time()
                work(tensor)
                took_s.append(time.perf_counter() - began_s)
                worked_s.append(time.process_time() - worked)
            figures[f"{name} of {size:,} bytes"] = median(took_s), median(worked_s)
    network.barrier()
    return figures


def measured(cluster: Path, rounds: int) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """By what was done, by kind: the figures of each round, the slowest rank's time and the mean
    of all ranks' processor time."""
    by_name: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for number in range(rounds):
        for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
            for name, figures in _round(cluster, kind).items():
                by_name[name][kind].append(figures)
    return by_name


def _round(cluster: Path, kind: str) -> Figures:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as place,
        Lab(load_cluster(cluster), PIPELINE * DATA) as lab,
    ):
        folder = Path(place)
        write_secret(folder / "secret")
        lines: list[bytes] = []
        command = [sys.executable, __file__, "--rank", place, kind]
        endings = run_crew(lab, command, lambda _rank, line: lines.append(line))
        if any(ending.status for ending in endings):
            sys.exit(b"\n".join(lines).decode())
        ranks = [json.loads(line) for line in lines if line.startswith(b"{")]
    return {
        name: (
            max(each[name][0] for each in ranks),
            sum(each[name][1] for each in ranks) / len(ranks),
        )
        for name in ranks[0]
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument(
        "--cluster", type=Path, default=ROOT / "examples/clusters/quickstart-lab.toml"
    )
    asked.add_argument("--json", type=Path)
    asked.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    chosen = asked.parse_args()
    if chosen.rank:
        print(json.dumps(rank(Path(chosen.rank[0]), chosen.rank[1])), flush=True)
        os._exit(0)
    by_name = measured(chosen.cluster, chosen.rounds)
    if chosen.json:
        chosen.json.write_text(json.dumps(by_name, indent=1))
    print(f"{'milliseconds (processor)':28s}" + "".join(f"{kind:>20s}" for kind in KINDS))
    for name, kinds in by_name.items():
        cells = [
            f"{median(row[0] for row in kinds[kind]) * 1e3:10.2f} "
            f"({median(row[1] for row in kinds[kind]) * 1e3:6.2f})"
            for kind in KINDS
        ]
        print(f"{name:28s}" + "".join(f"{cell:>20s}" for cell in cells))


if __name__ == "__main__":
    main()
