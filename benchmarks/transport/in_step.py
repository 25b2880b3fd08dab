"""What a step's messages cost over the runtime's connections, and over the transport.

    python benchmarks/transport/in_step.py [--turns 5] [--json FILE]
    python benchmarks/transport/in_step.py --train [--turns 5] [--json FILE]

Two ranks on one host send each other as many bytes at the same time, as in a reduction or a gather
of two replicas, and wait for each other's. `tcp`, `tls` (as a job's [train] tls = "secret"), `unix`
and `near` (ranks read each other's memory) are the runtime's connections; `sock`, `shm` and
`mapped` (memory of `Engine.allocate`) are the transport. Processor time is that of both processes
with all their threads and the kernel's part; it is what a rank that computes beside its messages
loses.

`--train`: steps of a job with much to send and little to compute, and of one with little to send,
by `ratrain train`, whose ranks connect over TCP, in the clear and under TLS, over sockets of the
machine, or read each other's memory. Kinds take turns; figures are medians over turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median

import numpy as np

from ratrain.runtime.encryption import guard_of
from ratrain.runtime.rank.joining.handshake import Gate
from ratrain.runtime.step.network.connection import Connection, Landing, Leaving, move
from ratrain.runtime.step.network.near import Introduction
from ratrain.transport import Config, Descriptor, Engine

CONNECTIONS = ("tcp", "tls", "unix", "near")
KINDS = (*CONNECTIONS, "sock", "shm", "mapped")
SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20, 32 << 20)
MOVED = 1 << 29
"""Bytes that each rank sends in a turn of one size, and at most COUNT messages."""
COUNT = 400
SECRET = b"benchmark secret"
PATIENCE_S = 60.0
Exchange = Callable[[int], None]
"""Sends that many bytes, and receives as many."""


def of_connection(rank: int, kind: str, pipe: Pipe) -> Exchange:
    """The runtime's own."""
    over_ip = kind in ("tcp", "tls")
    family = socket.AF_INET if over_ip else socket.AF_UNIX
    if rank == 0:
        with socket.socket(family) as listener:
            listener.bind(("127.0.0.1", 0) if over_ip else f"\0in step {os.getpid()}")
            listener.listen()
            pipe.send(listener.getsockname())
            sock, _ = listener.accept()
    else:
        sock = socket.socket(family)
        sock.connect(pipe.recv())
    if kind == "tls":
        gate, deadline_s = Gate(SECRET, guard_of("secret")), time.monotonic() + 5
        if rank == 0:
            sock, _ = gate.welcome(sock, lambda _: b"", deadline_s)
        else:
            sock = gate.greet(sock, b"", deadline_s)
    near = None
    if kind == "near":
        introduction = Introduction(sock, readable=True)
        introduction.hear()
        near = introduction.agree()
    link = Connection(sock, rank, 1 - rank, PATIENCE_S, near)
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
    of_runtime = kind in CONNECTIONS
    exchange = of_connection(number, kind, pipe) if of_runtime else of_transport(kind, pipe)
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


_OVER_IP = """
from ratrain.runtime.rank.joining import rendezvous
rendezvous.listen_near = lambda address: None
"""
WITHOUT = {
    "tcp": _OVER_IP,
    "tls": _OVER_IP,
    "unix": "from ratrain.runtime.step.network import connection\n"
    "connection.NEAR_BYTES = 1 << 62\n",
    "near": "",
}
"""What an extension does to ranks, so that they connect in an older way."""
CONFIG = {
    "model_type": "llama",
    "_name_or_path": "wide",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1536,
    "vocab_size": 8192,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
}
JOBS = {"much to send": (32, 2), "little to send": (128, 4)}
"""(length of a sequence, sequences)."""
JOB = """
model = {{ name = "config.json", sequence_length = {length} }}
cluster = {{ name = "cpu-lab", devices = 2 }}
batch = {{ sequences = {sequences}, micro_batch = 1 }}
layout = {{ pipeline = 1, data = 2 }}
schedule = {{ dtype = "fp32" }}
train = {{ steps = 16 }}
data = {{ files = ["text.txt"] }}
"""


def step_s(folder: Path, name: str, kind: str, number: int) -> float:
    """Median step of a run's last half."""
    run = folder / f"{name}-{kind}-{number}".replace(" ", "-")
    variables = {"PYTHONPATH": str(folder), "RATRAIN_EXTENSIONS": f"as_{kind}"}
    words = ["train", f"{name}.toml", "--run", str(run), "--no-calibrate", "--json"]
    words += ["--set", 'train.tls="secret"'] if kind == "tls" else []
    command = [sys.executable, "-m", "ratrain", *words]
    subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, check=True, capture_output=True
    )
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    times = [row["step_time_s"] for row in rows if "step_time_s" in row]
    return median(times[len(times) // 2 :])


def train(turns: int) -> dict[str, dict[str, list[float]]]:
    """By job and kind: its steps."""
    found: dict[str, dict[str, list[float]]] = {
        name: {kind: [] for kind in CONNECTIONS} for name in JOBS
    }
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "text.txt").write_text(
            "".join(f"{n} times {n} is {n * n}.\n" for n in range(9999))
        )
        for kind, words in WITHOUT.items():
            (folder / f"as_{kind}.py").write_text(words)
        for name, (length, sequences) in JOBS.items():
            text = JOB.format(length=length, sequences=sequences)
            (folder / f"{name}.toml").write_text(text)
        for number in range(turns):
            for name in JOBS:
                for kind in CONNECTIONS:
                    found[name][kind].append(step_s(folder, name, kind, number))
    for name, kinds in found.items():
        base = median(kinds["tcp"])
        print(
            f"{name:16}"
            + "".join(
                f"  {kind} {1e3 * median(times):.1f} ms ({base / median(times):.2f} x)"
                for kind, times in kinds.items()
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--train", action="store_true")
    asked = parser.parse_args()
    if asked.train:
        steps = train(asked.turns)
        if asked.json:
            asked.json.write_text(json.dumps(steps, indent=1))
        return
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
