"""What a step's messages cost over the runtime's sockets, and over the transport.

    python benchmarks/transport/in_step.py [--turns 5] [--json FILE]

Two ranks on one host send each other as many bytes at the same time, as in a reduction or a gather
of two replicas, and wait for each other's. `sockets` is what training uses (`Connection`, `move`);
`sock`, `shm` and `mapped` (memory of `Engine.allocate`) are the transport. Processor time is that
of both processes with all their threads and the kernel's part; it is what a rank that computes
beside its messages loses. The kinds take turns; figures are medians over turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median

import numpy as np

from ratrain.runtime.step.network.connection import Connection, Landing, Leaving, move
from ratrain.transport import Config, Descriptor, Engine

KINDS = ("sockets", "sock", "shm", "mapped")
SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20, 32 << 20)
MOVED = 1 << 29
"""Bytes that each rank sends in a turn of one size, and at most COUNT messages."""
COUNT = 400
SECRET = b"benchmark secret"
PATIENCE_S = 60.0
Exchange = Callable[[int], None]
"""Sends that many bytes, and receives as many."""


def of_sockets(rank: int, pipe: Pipe) -> Exchange:
    """The runtime's own."""
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            pipe.send(listener.getsockname())
            sock, _ = listener.accept()
    else:
        sock = socket.create_connection(pipe.recv())
    link = Connection(sock, rank, 1 - rank, PATIENCE_S)
    out, into = np.ones(max(SIZES), np.uint8), np.zeros(max(SIZES), np.uint8)
    return lambda size: move([Leaving(link, out[:size].data)], [Landing(link, into[:size].data)])


def of_transport(provider: str, pipe: Pipe) -> Exchange:
    """An engine's writes, each announced by an immediate."""
    name = "shm" if provider == "mapped" else provider
    engine = Engine(Config(SECRET, "rank", providers=(name,), nics="loopback"))
    room = engine.allocate(max(SIZES)) if provider == "mapped" else np.ones(max(SIZES), np.uint8)
    out, into = engine.register(room, remote=False), engine.register(np.zeros_like(room))
    pipe.send(into.descriptor().to_bytes())
    theirs = Descriptor.from_bytes(pipe.recv())
    came = engine.counter(1)

    def exchange(size: int) -> None:
        sent = engine.write(out[:size], theirs[:size], imm=1)
        came.wait(1)
        sent.wait()

    return exchange


def rank(number: int, kind: str, pipe: Pipe, results: Pipe) -> None:
    """One of the two: seconds and processor seconds of each size."""
    exchange = of_sockets(number, pipe) if kind == "sockets" else of_transport(kind, pipe)
    figures: dict[int, tuple[float, float]] = {}
    for size in SIZES:
        for _ in range(3):
            exchange(size)
        count = min(COUNT, MOVED // size)
        began_s, busy_s = time.perf_counter(), time.process_time()
        for _ in range(count):
            exchange(size)
        figures[size] = (
            (time.perf_counter() - began_s) / count,
            (time.process_time() - busy_s) / count,
        )
    results.send(figures)
    pipe.send("done")
    pipe.recv()  # the peer has read everything


def turn(kind: str) -> dict[int, tuple[float, float]]:
    """Both ranks once: by size, seconds of an exchange, and processor seconds of both."""
    context = mp.get_context("spawn")
    ends, pipes = context.Pipe(), [context.Pipe() for _ in range(2)]
    ranks = [
        context.Process(target=rank, args=(number, kind, ends[number], pipes[number][1]))
        for number in range(2)
    ]
    for process in ranks:
        process.start()
    first, second = (pipe[0].recv() for pipe in pipes)
    for process in ranks:
        process.join()
    return {
        size: (max(first[size][0], second[size][0]), first[size][1] + second[size][1])
        for size in SIZES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    turns = [{kind: turn(kind) for kind in KINDS} for _ in range(asked.turns)]
    table = {
        kind: {
            size: [median(each[kind][size][at] for each in turns) for at in range(2)]
            for size in SIZES
        }
        for kind in KINDS
    }
    print("both ways at once, a message; us, and us of processor time of both ranks")
    print(f"{'bytes':>10}" + "".join(f"{kind:>20}" for kind in KINDS))
    for size in SIZES:
        cells = (
            f"{1e6 * took:.0f} ({1e6 * busy:.0f})"
            for took, busy in (t[size] for t in table.values())
        )
        print(f"{size:>10}" + "".join(f"{cell:>20}" for cell in cells))
    if asked.json:
        asked.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
