"""Side by side in one run: ours, gloo, a raw socket, NIXL, Mooncake, memcpy, iperf3.

    python benchmarks/transport/peers.py            # gloo's column needs torch
    python benchmarks/transport/peers.py --others /tmp/others/bin/python    # see others.py
    python benchmarks/transport/peers.py --rows 256 1024    # these sizes alone, in KiB
    python benchmarks/transport/peers.py --rows latency pages

Each row is the median of five rounds (`--turns`), with the lowest and the highest behind it; the
peers take turns within a round, in an order drawn for it. Everybody, memcpy too, reads from and
writes into 128 MiB, front to back and again: a small buffer used over and over would stay in the
processor's cache, which no weight or page does. The last lines give ours as a fraction.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from others import KINDS, Other  # pyright: ignore[reportMissingImports]
from ours import SPACE  # pyright: ignore[reportMissingImports]

SIZES_KIB = (64, 256, 1024, 16384)
TOTAL = 1 << 28
OURS = ("sock", "shm", "mapped")


def part(space: Any, number: int, size: int) -> Any:
    """The `number`-th part of `size` bytes, from the front again after the last."""
    at = number % (SPACE // size) * size
    return space[at : at + size]


def gloo_far(pipe: Connection, port: int) -> None:
    """Rank 1: receive, or answer pings."""
    import torch  # pyright: ignore[reportMissingImports]
    import torch.distributed as dist  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    space = torch.ones(SPACE, dtype=torch.uint8)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=1, world_size=2)
    while (job := pipe.recv()) is not None:
        kind, size, count = job
        if kind == "pong":
            data = torch.ones(size, dtype=torch.uint8)
            for _ in range(count):
                dist.recv(data, 0)
                dist.send(data, 0)
        else:
            window = 4 if size >= 4 << 20 else 32
            flying = []
            for i in range(count):
                flying.append(dist.irecv(part(space, i, size), 0))
                if len(flying) >= window:
                    flying.pop(0).wait()
            for work in flying:
                work.wait()
            pipe.send("done")


class Gloo:
    """gloo send and receive between two processes."""

    def __init__(self) -> None:
        import torch  # pyright: ignore[reportMissingImports]
        import torch.distributed as dist  # pyright: ignore[reportMissingImports]

        torch.set_num_threads(1)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.child = context.Process(target=gloo_far, args=(theirs, port), daemon=True)
        self.child.start()
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=2)
        self.torch, self.dist = torch, dist
        self.space = torch.ones(SPACE, dtype=torch.uint8)

    def one_way_us(self, size: int, count: int) -> float:
        """Median of half a ping-pong."""
        self.pipe.send(("pong", size, count))
        data = self.torch.ones(size, dtype=self.torch.uint8)
        times = []
        for _ in range(count):
            began = time.perf_counter()
            self.dist.send(data, 1)
            self.dist.recv(data, 1)
            times.append(time.perf_counter() - began)
        return statistics.median(times) / 2 * 1e6

    def gb_per_s(self, size: int, total: int) -> float:
        """Windowed sends."""
        count, window = max(8, total // size), 4 if size >= 4 << 20 else 32
        self.pipe.send(("count", size, count))
        began, flying = time.perf_counter(), []
        for i in range(count):
            flying.append(self.dist.isend(part(self.space, i, size), 1))
            if len(flying) >= window:
                flying.pop(0).wait()
        for work in flying:
            work.wait()
        self.pipe.recv()
        return count * size / (time.perf_counter() - began) / 1e9

    def close(self) -> None:
        """End."""
        self.pipe.send(None)


def raw_far(port: int) -> None:
    """Read for ever; answer each 1 KiB with 1 KiB when asked to."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    space = np.ones(SPACE, np.uint8).data
    while True:
        size = int.from_bytes(sock.recv(8, socket.MSG_WAITALL), "big")
        count = int.from_bytes(sock.recv(8, socket.MSG_WAITALL), "big")
        if not size:
            return
        for i in range(count):
            at, buffer = 0, part(space, i, size)
            while at < size:
                at += sock.recv_into(buffer[at:])
            if size == 1024:
                sock.sendall(buffer)
        sock.sendall(b"k")


class Raw:
    """A bare Python socket, no engine."""

    def __init__(self) -> None:
        server = socket.create_server(("127.0.0.1", 0))
        context = mp.get_context("spawn")
        self.child = context.Process(target=raw_far, args=(server.getsockname()[1],), daemon=True)
        self.child.start()
        self.sock, _ = server.accept()
        self.space = np.ones(SPACE, np.uint8).data
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def one_way_us(self, size: int, count: int) -> float:
        """Median of half a ping-pong (1 KiB only)."""
        self.sock.sendall(size.to_bytes(8, "big") + count.to_bytes(8, "big"))
        data, times = bytes(size), []
        for _ in range(count):
            began = time.perf_counter()
            self.sock.sendall(data)
            self.sock.recv(size, socket.MSG_WAITALL)
            times.append(time.perf_counter() - began)
        self.sock.recv(1)
        return statistics.median(times) / 2 * 1e6

    def gb_per_s(self, size: int, total: int) -> float:
        """One stream."""
        count = max(8, total // size)
        self.sock.sendall(size.to_bytes(8, "big") + count.to_bytes(8, "big"))
        began = time.perf_counter()
        for i in range(count):
            self.sock.sendall(part(self.space, i, size))
        self.sock.recv(1)
        return count * size / (time.perf_counter() - began) / 1e9

    def close(self) -> None:
        """End."""
        self.sock.sendall(bytes(16))


def memcpy_gb_per_s(size: int, total: int) -> float:
    """One thread, over 128 MiB buffers."""
    a, b = np.ones(128 << 20, np.uint8), np.zeros(128 << 20, np.uint8)
    b[:] = a
    slots, count = (128 << 20) // size, max(8, total // size)
    began = time.perf_counter()
    for i in range(count):
        at = i % slots * size
        b[at : at + size] = a[at : at + size]
    return count * size / (time.perf_counter() - began) / 1e9


def iperf3_gb_per_s() -> float:
    """One stream for a second, client and server on a core each."""
    if shutil.which("iperf3") is None:
        return float("nan")
    server = subprocess.Popen(
        ["taskset", "-c", "1", "iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", "5998"],
        stdout=subprocess.DEVNULL,
    )
    time.sleep(0.3)
    out = subprocess.run(
        ["taskset", "-c", "0", "iperf3", "-c", "127.0.0.1", "-p", "5998", "-t", "1", "-J"],
        capture_output=True,
        check=True,
    )
    server.wait()
    return json.loads(out.stdout)["end"]["sum_received"]["bits_per_second"] / 8e9


def taking_turns(calls: list[Callable[[], float]], turns: int) -> list[list[float]]:
    """Each call's values over `turns`, sorted. The calls take turns in an order drawn anew for
    each: who comes after a second of iperf3's sleeping is a fifth slower."""
    values: list[list[float]] = [[] for _ in calls]
    dice, order = random.Random(0), list(range(len(calls)))
    for _ in range(turns):
        dice.shuffle(order)
        for index in order:
            values[index].append(calls[index]())
    return [sorted(v) for v in values]


def show(name: str, row: list[list[float]], digits: int = 2) -> list[float]:
    """Print one row, its range below it; returns the medians."""
    median = [statistics.median(v) for v in row]
    print(name.ljust(19) + "".join(f"{v:11.{digits}f}" for v in median))
    spans = [f"{v[0]:.{digits}f}-{v[-1]:.{digits}f}" for v in row]
    print(" " * 19 + "".join(s.rjust(11) for s in spans), flush=True)
    return median


def open_peers(others: str) -> dict[str, Any]:
    """All that run here, warm."""
    peers: dict[str, Any] = {n: Other(n, sys.executable, "near.py") for n in OURS}
    peers["raw"] = Raw()
    try:
        peers["gloo"] = Gloo()
    except ImportError as error:
        print(f"gloo: not run ({error})")
    for kind in KINDS if others else ():
        try:
            peers[kind] = Other(kind, others)
        except ImportError as error:
            print(f"{kind}: not run ({error})")
    for peer in peers.values():
        peer.one_way_us(1024, 300)
        peer.gb_per_s(16 << 20, TOTAL)
    return peers


def pin(peers: dict[str, Any]) -> None:
    """Every near end on core 0, every far end on core 1: left alone, the scheduler often keeps two
    processes that wake each other on one core, and whose turn that is, is chance."""
    for peer in peers.values():
        near = peer.child.pid if isinstance(peer, Other) else os.getpid()
        far = [peer.child.pid]
        if isinstance(peer, Other):
            far = Path(f"/proc/{near}/task/{near}/children").read_text().split()
        for core, pids in ((0, [near]), (1, far)):
            for pid in pids:
                for task in Path(f"/proc/{pid}/task").iterdir():
                    os.sched_setaffinity(int(task.name), {core})


def fractions(size: int, rates: dict[str, float]) -> None:
    """One line: ours against the best over TCP, gloo, NIXL in shared memory, and memcpy."""
    tcp = {n: v for n, v in rates.items() if n in ("raw", "gloo", "nixl tcp", "mooncake")}
    best = max(tcp, key=lambda n: tcp[n])
    line = f"{size >> 10} KiB: sock {rates['sock'] / tcp[best]:.2f} of the best ({best})"
    for name in ("gloo", "nixl tcp", "mooncake"):
        if name in rates:
            line += f", {rates['sock'] / rates[name]:.2f} of {name}"
    for name in ("shm", "mapped"):
        line += f"; {name} {rates[name] / rates['memcpy']:.2f} of memcpy"
        if "nixl shm" in rates:
            line += f", {rates[name] / rates['nixl shm']:.2f} of nixl shm"
    print(line)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--others", default="", help="a Python that has NIXL and Mooncake")
    parser.add_argument("--rows", nargs="*", default=["latency", *map(str, SIZES_KIB), "pages"])
    parser.add_argument("--pin", action="store_true", help="near ends on core 0, far on core 1")
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args()
    peers = open_peers(asked.others)
    if asked.pin:
        pin(peers)
    names = list(peers)
    print("measure".ljust(19) + "".join(n.rjust(11) for n in [*names, "memcpy", "iperf3"]))
    if "latency" in asked.rows:
        calls = [lambda p=p: p.one_way_us(1024, 1000) for p in peers.values()]
        show("1 KiB one way, us", taking_turns(calls, asked.turns), 1)
    rows: dict[int, dict[str, float]] = {}
    for size in [int(r) << 10 for r in asked.rows if r.isdecimal()]:
        calls = [lambda p=p, size=size: p.gb_per_s(size, TOTAL) for p in peers.values()]
        calls += [lambda size=size: memcpy_gb_per_s(size, TOTAL), iperf3_gb_per_s]
        row = show(f"{size >> 10} KiB, GB/s", taking_turns(calls, asked.turns))
        rows[size] = dict(zip([*names, "memcpy", "iperf3"], row, strict=True))
    if "pages" in asked.rows:
        ours = [peers[n] for n in OURS]
        for page in (1024, 4096, 16384):
            calls = [lambda p=p, page=page: p.pages_per_s(page) / 1e6 for p in ours]
            show(f"{page} B pages, M/s", taking_turns(calls, asked.turns), 3)
    for size, rates in rows.items():
        fractions(size, rates)
    for peer in peers.values():
        peer.close()


if __name__ == "__main__":
    main()
