"""Hosts on several unequal networks: what tensors get of their sum.

    python benchmarks/transport/several_networks.py [--rates 100 400] [--turns 3] [--json FILE]

Two hosts (network namespaces; needs root) have a network for each rate in Mbit/s, shaped by tbf,
or one alone that is as fast as all together. First one rank on each sends the other messages, both
ways at once, over the runtime's connections: the rate of the bodies. Then `ratrain launch` trains a
job of two replicas that has much to send, on each network alone, on all, and on the one that is as
fast as all: medians of steps over turns.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from in_step import CONFIG

from ratrain.runtime.step.network.connection import Connection, Landing, Leaving, move

HOSTS = ("ratrain-nets-0", "ratrain-nets-1")
SIZES = (256 << 10, 1 << 20, 8 << 20, 32 << 20)
MOVED = 64 << 20
"""Bytes each way of a size in a turn."""
PATIENCE_S = 60.0
PORT = 29711
JOB = """
model = {{ name = "config.json", sequence_length = 32 }}
cluster = {{ name = "{rate}.cluster.toml", devices = 2 }}
batch = {{ sequences = 2, micro_batch = 1 }}
layout = {{ pipeline = 1, data = 2 }}
schedule = {{ dtype = "fp32" }}
train = {{ steps = 8 }}
data = {{ files = ["text.txt"] }}
"""
CLUSTER = """
name = "two-hosts"

[[device]]
name = "cpu-rank"
launch = "10us"
memory_efficiency = 0.8
tiers = [{{ name = "RAM", capacity = "4GB", bandwidth = "10GB/s" }}]
rates = [{{ dtype = "fp32", peak = "100GFLOP/s", gemm = "50GFLOP/s" }}]

[[host]]
name = "host"
device = "cpu-rank"
devices = 1
count = 2

[links.room]
latency = "100us"
bandwidth = "{rate}Mbit/s"
shared_by = "host"
"""
"""As the planner knows it: one network, as fast as all of a host's together."""


def address(network: int, host: int) -> str:
    """Of a host on a network."""
    return f"10.93.{network}.{host + 1}"


def run(line: str, *, check: bool = True) -> None:
    """A command of the shell's words."""
    subprocess.run(line.split(), check=check, capture_output=not check)


@contextmanager
def hosts(rates: Sequence[int]) -> Generator[None]:
    """Two, with a network for each rate in Mbit/s."""
    try:
        for host in HOSTS:
            run(f"ip netns add {host}")
            run(f"ip -n {host} link set lo up")
        for number, rate in enumerate(rates):
            name = f"net{number}"
            run(f"ip -n {HOSTS[0]} link add {name} type veth peer name {name} netns {HOSTS[1]}")
            for place, host in enumerate(HOSTS):
                run(f"ip -n {host} addr add {address(number, place)}/24 dev {name}")
                run(f"ip -n {host} link set {name} gso_max_size 32768 up")  # less than a burst
                burst = max(64, rate // 4)
                shape = f"root tbf rate {rate}mbit burst {burst}kb latency 20ms"
                run(f"ip netns exec {host} tc qdisc replace dev {name} {shape}")
        yield
    finally:
        for host in HOSTS:
            run(f"ip netns del {host}", check=False)


def inside(host: str) -> list[str]:
    """What runs this Python on a host."""
    return ["ip", "netns", "exec", host, sys.executable]


# ---- messages -----------------------------------------------------------------------------------


def end(place: int, networks: int) -> None:
    """One of the two ranks: prints seconds of a message by size."""
    wanted = [0, *range(networks)] if networks > 1 else [0]  # the connection, then its rails
    if place == 0:
        with ExitStack() as listening:
            servers = [
                listening.enter_context(socket.create_server((address(number, 0), PORT)))
                for number in range(networks)
            ]
            sockets = [servers[number].accept()[0] for number in wanted]
    else:
        sockets = [_dialled(address(number, 0)) for number in wanted]
    link = Connection(sockets[0], place, 1 - place, PATIENCE_S, rails=sockets[1:])
    out, into = np.ones(max(SIZES), np.uint8), np.zeros(max(SIZES), np.uint8)
    took_s: dict[int, float] = {}
    for size in SIZES:
        turns = max(3, MOVED // size)
        began_s = time.perf_counter()
        for turn in range(turns + 1):
            if turn == 1:
                began_s = time.perf_counter()
            move([Leaving(link, out[:size].data)], [Landing(link, into[:size].data)])
        took_s[size] = (time.perf_counter() - began_s) / turns
    print(json.dumps(took_s))


def _dialled(to: str) -> socket.socket:
    end_s = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((to, PORT))
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.02)


def messages(rates: Sequence[int]) -> dict[int, float]:
    """Mbit/s each way, by size."""
    with hosts(rates):
        ends = [
            subprocess.Popen(
                [*inside(host), __file__, "--end", str(place), "--networks", str(len(rates))],
                stdout=subprocess.PIPE,
                text=True,
            )
            for place, host in enumerate(HOSTS)
        ]
        said = [json.loads(each.communicate()[0]) for each in ends]
    return {size: 8e-6 * size / max(float(each[str(size)]) for each in said) for size in SIZES}


# ---- steps --------------------------------------------------------------------------------------


def step_s(folder: Path, rates: Sequence[int], name: str) -> float:
    """Median step of a run's last half."""
    (folder / f"{sum(rates)}.cluster.toml").write_text(CLUSTER.format(rate=sum(rates)))
    (folder / f"{name}.toml").write_text(JOB.format(rate=sum(rates)))
    command = [sys.executable, "-m", "ratrain"]
    train = ["train", f"{name}.toml", "--run", name, "--prepare-only"]
    subprocess.run([*command, *train], cwd=folder, check=True, capture_output=True)
    with hosts(rates), ExitStack() as stack:
        for place, host in enumerate(HOSTS):
            networks = ",".join(address(number, place) for number in range(len(rates)))
            variables = {
                "RANK": place,
                "LOCAL_RANK": 0,
                "WORLD_SIZE": 2,
                "MASTER_ADDR": address(0, 0),
                "MASTER_PORT": PORT,
                "RATRAIN_ADDRESS": networks,
            }
            child = subprocess.Popen(
                [*inside(host), "-P", "-m", "ratrain.runtime.rank", str(folder / name)],
                env={**os.environ, **{key: str(value) for key, value in variables.items()}},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(child.wait)
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    times = [row["step_time_s"] for row in rows if "step_time_s" in row]
    return median(times[len(times) // 2 :])


def steps(kinds: dict[str, Sequence[int]], turns: int) -> dict[str, list[float]]:
    """By kind; kinds take turns."""
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        lines = (f"{n} times {n} is {n * n}.\n" for n in range(9999))
        (folder / "text.txt").write_text("".join(lines))
        for turn in range(turns):
            for kind, rates in kinds.items():
                found[kind].append(step_s(folder, rates, f"{kind}-{turn}".replace(" ", "-")))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 400], metavar="MBIT")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--messages", action="store_true", help="without training")
    parser.add_argument("--end", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--networks", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.end is not None:
        end(asked.end, asked.networks)
        return
    rates: list[int] = asked.rates
    kinds: dict[str, Sequence[int]] = {f"{rate} alone": (rate,) for rate in rates}
    kinds |= {"all": tuple(rates), f"one of {sum(rates)}": (sum(rates),)}
    moved: dict[str, list[dict[int, float]]] = {kind: [] for kind in kinds}
    for _ in range(asked.turns):
        for kind, each in kinds.items():
            moved[kind].append(messages(each))
    print("Mbit/s each way, both at once (and of the sum of rates)")
    for kind, found in moved.items():
        cells = [median(each[size] for each in found) for size in SIZES]
        whole = sum(kinds[kind])
        words = (f"{size >> 10} KiB {cell:.0f} ({cell / whole:.2f})"
                 for size, cell in zip(SIZES, cells, strict=True))  # fmt: skip
        print(f"{kind:>14}  " + "  ".join(words))
    trained = {} if asked.messages else steps(kinds, asked.turns)
    best = trained.get(f"one of {sum(rates)}", [0.0])
    for kind, times in trained.items():
        print(f"{kind:>14}  step {median(times):.3f} s ({median(best) / median(times):.2f} of it)")
    if asked.json:
        asked.json.write_text(json.dumps({"messages": moved, "steps": trained}, indent=1))


if __name__ == "__main__":
    main()
