"""Mixed traffic between many processes with random kills: `soak.py SECONDS PROCESSES`.

Every process writes to, pages to, messages and cancels against random others. Each write carries
a pattern that the receiver checks after its counter has moved. A keeper kills a random process
with SIGKILL every few seconds and starts another in its place. At the end it prints counts,
and the growth of memory, descriptors and threads of the processes that lived through.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import random
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from ratrain.errors import PeerDown, StaleDescriptor, TransportError
from ratrain.transport import Address, Config, Descriptor, Engine

SECRET = b"a secret of soak"
SLOTS, SLOT_BYTES, PAGE = 64, 256 << 10, 4096


def held() -> dict[str, int]:
    """This process's resident KiB, descriptors and threads."""
    status = Path("/proc/self/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "rss_kib": int(resident.split()[1]),
        "fds": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
    }


class Worker:
    """One process: answers `claim` messages with a slot, checks what lands in it."""

    def __init__(self, pipe: Connection, name: str, provider: tuple[str, ...]) -> None:
        self.pipe = pipe
        self.dice = random.Random(name)
        self.engine = Engine(
            Config(SECRET, name, providers=provider, deadline_s=10.0, connect_timeout_s=2.0)
        )
        self.space = np.zeros((SLOTS, SLOT_BYTES), np.uint8)
        self.region = self.engine.register(self.space)
        self.source = np.zeros((8, SLOT_BYTES), np.uint8)
        self.out = self.engine.register(self.source, remote=False)
        self.counts = {"writes": 0, "errors": 0, "cancelled": 0, "checked": 0, "wrong": 0}
        self.engine.recv_pool(8, 256, self.on_message)
        self.peers: list[Descriptor] = []
        self.round = 0

    def on_message(self, source: object, data: bytes) -> None:
        """A sender says that slot n is whole with value v: check every byte."""
        slot, size, value = json.loads(data)
        self.counts["checked"] += 1
        if not (self.space[slot, :size] == value).all():
            self.counts["wrong"] += 1
        assert isinstance(source, Address)
        self.engine.imm(source, 2)

    def step(self, mine: int) -> None:
        """One random operation into a slot that belongs to this process alone."""
        place = self.dice.choice(self.peers)
        if place.address == self.engine.address:
            return
        self.round += 1
        value, row = self.round % 251 + 1, self.round % 8
        size = self.dice.choice([1, 1000, 4096, 65536, SLOT_BYTES])
        self.source[row, :size] = value
        span = self.out[row * SLOT_BYTES : row * SLOT_BYTES + size]
        target = place[mine * SLOT_BYTES : mine * SLOT_BYTES + size]
        try:
            if size == SLOT_BYTES and self.dice.random() < 0.5:
                order = self.dice.sample(range(size // PAGE), size // PAGE)
                transfer = self.engine.write_paged(span, order, target, order[::-1], PAGE, imm=1)
            else:
                transfer = self.engine.write(span, target, imm=1)
            if self.dice.random() < 0.1:
                transfer.cancel()
            transfer.wait()
            self.counts["writes"] += 1
            note = json.dumps([mine, size, value]).encode()
            checked = self.engine.counter(2, [place.address])
            if checked.value:
                checked.wait(checked.value)  # late answers of peers given up
            self.engine.send(place.address, note).wait()
            checked.wait(1)
        except (PeerDown, StaleDescriptor):
            self.counts["errors"] += 1
            self.peers = [p for p in self.peers if p != place] or self.peers
        except TransportError:
            self.counts["cancelled"] += 1

    def run(self, mine: int) -> None:
        """Serve until told to end."""
        self.pipe.send(self.region.descriptor().to_bytes())
        start: dict[str, int] = {}
        while True:
            while self.pipe.poll(0):
                told: Any = self.pipe.recv()
                if told is None:
                    self.pipe.send((self.counts, start, held()))
                    self.engine.close()
                    return
                self.peers = [Descriptor.from_bytes(d) for d in told]
            if len(self.peers) > 1:
                self.step(mine)
                if self.round == 200:
                    start = held()
            else:
                time.sleep(0.01)


def work(pipe: Connection, name: str, mine: int, provider: tuple[str, ...]) -> None:
    """A worker process."""
    Worker(pipe, name, provider).run(mine)


def soak(seconds: float, processes: int, kill_every_s: float = 2.0) -> dict[str, Any]:
    """Run the soak; the sums over the processes that lived to the end."""
    context = mp.get_context("spawn")
    alive: list[tuple[Any, Connection, bytes]] = []
    born = 0

    def start(slot: int) -> None:
        nonlocal born
        ours, theirs = context.Pipe()
        provider = (("sock",), ("shm", "sock"))[slot % 2]
        process = context.Process(target=work, args=(theirs, f"w{born}", slot, provider))
        process.start()
        theirs.close()
        born += 1
        entry = (process, ours, ours.recv())
        if slot < len(alive):
            alive[slot] = entry
        else:
            alive.append(entry)

    def tell() -> None:
        for _, pipe, _ in alive:
            pipe.send([d for _, _, d in alive])

    for slot in range(processes):
        start(slot)
    tell()
    dice, kills = random.Random(0), 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s - kill_every_s:
        time.sleep(kill_every_s)
        slot = dice.randrange(processes // 2)  # the other half lives through: leaks show there
        alive[slot][0].kill()
        alive[slot][0].join()
        alive[slot][1].close()
        kills += 1
        start(slot)
        tell()
    time.sleep(max(0.0, end_s - time.monotonic()))
    total = {"writes": 0, "errors": 0, "cancelled": 0, "checked": 0, "wrong": 0}
    growth: list[dict[str, int]] = []
    for _, pipe, _ in alive:
        pipe.send(None)
    for slot, (process, pipe, _) in enumerate(alive):
        counts, begin, end = pipe.recv()
        process.join(20)
        total = {k: total[k] + counts[k] for k in total}
        if slot >= processes // 2 and begin:
            growth.append({k: end[k] - begin[k] for k in begin})
    worst = {k: max((g[k] for g in growth), default=0) for k in ("rss_kib", "fds", "threads")}
    hung = sum(process.is_alive() for process, _, _ in alive)
    left = list(Path("/tmp").glob("ratnet-socket-*"))
    return {"kills": kills, **total, "hung": hung, "worst_growth": worst, "folders": len(left)}


if __name__ == "__main__":
    print(json.dumps(soak(float(sys.argv[1]), int(sys.argv[2])), indent=2))
