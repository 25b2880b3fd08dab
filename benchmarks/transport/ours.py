"""One of our engines in a child process: the far end of every measurement."""

from __future__ import annotations

import multiprocessing as mp
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from ratrain.transport import Address, Config, Descriptor, Engine, Tls

SECRET = b"benchmark secret"
SPACE = 128 << 20


def options(provider: str) -> dict[str, Any]:
    """Options of an engine; "tls" is `sock` under TLS."""
    if provider == "tls":
        return {"providers": ("sock",), "tls": Tls()}
    return {"providers": (provider,)}


def far_end(pipe: Connection, provider: str, nics: str | tuple[str, ...]) -> None:
    """Register a target, answer each ping on the counter, until told to end."""
    engine = Engine(Config(SECRET, "far", **options(provider), nics=nics, deadline_s=100.0))
    region = engine.register(np.zeros(SPACE, np.uint8))
    pipe.send((engine.address.to_bytes(), region.descriptor().to_bytes()))
    peer = Descriptor.from_bytes(pipe.recv())
    source = engine.register(np.ones(SPACE, np.uint8), remote=False)
    while (job := pipe.recv()) is not None:
        kind, size, count = job
        if kind == "pong":
            pings = engine.counter(1)
            for _ in range(count):
                pings.wait(1)
                engine.write(source[:size], peer, imm=2)
        elif kind == "count":
            engine.counter(3).wait(count)
            pipe.send("counted")
    engine.close()


class Pair:
    """Our engine here and another in a child process."""

    def __init__(
        self, provider: str, nics: str | tuple[str, ...] = "loopback", *, allocate: bool = False
    ) -> None:
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.child = context.Process(target=far_end, args=(theirs, provider, nics), daemon=True)
        self.child.start()
        self.engine = Engine(Config(SECRET, "near", **options(provider), nics=nics))
        memory = self.engine.allocate(SPACE) if allocate else np.ones(SPACE, np.uint8)
        memory[:] = 1
        self.source = self.engine.register(memory, remote=False)
        inbox = self.engine.register(np.zeros(SPACE, np.uint8))
        address, target = self.pipe.recv()
        self.address = Address.from_bytes(address)
        self.target = Descriptor.from_bytes(target)
        self.pipe.send(inbox.descriptor().to_bytes())
        self.engine.connect(self.address, 10.0)

    def close(self) -> None:
        """End both."""
        self.pipe.send(None)
        self.child.join(5)
        self.engine.close()

    def one_way_us(self, size: int, count: int) -> float:
        """Median of half a write-with-immediate ping-pong."""
        self.pipe.send(("pong", size, count))
        pongs = self.engine.counter(2)
        times: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            self.engine.write(self.source[:size], self.target, imm=1)
            pongs.wait(1)
            times.append(time.perf_counter() - began)
        return statistics.median(times) / 2 * 1e6

    def gb_per_s(self, size: int, total: int) -> float:
        """Windowed writes until all are placed, as counted by the receiver."""
        count = max(8, total // size)
        window = 4 if size >= 4 << 20 else 32
        self.pipe.send(("count", 0, count))
        began = time.perf_counter()
        flying = []
        slots = SPACE // size
        for i in range(count):
            at = i % slots * size
            span = self.source[at : at + size]
            flying.append(self.engine.write(span, self.target[at : at + size], imm=3))
            if len(flying) >= window:
                flying.pop(0).wait()
        for transfer in flying:
            transfer.wait()
        self.pipe.recv()
        return count * size / (time.perf_counter() - began) / 1e9

    def pages_per_s(self, page: int, count: int = 8000) -> float:
        """Random pages of one paged write per second."""
        rng = np.random.default_rng(0)
        slots = SPACE // page
        src, dst = rng.permutation(slots)[:count], rng.permutation(slots)[:count]
        began = time.perf_counter()
        self.engine.write_paged(self.source, src, self.target, dst, page).wait()
        return count / (time.perf_counter() - began)


if __name__ == "__main__":
    for name in sys.argv[1:] or ["sock", "shm"]:
        pair = Pair(name)
        pair.one_way_us(1024, 500)
        pair.gb_per_s(16 << 20, 1 << 28)
        pair.pages_per_s(4096)
        print(name, "1 KiB one way us", round(pair.one_way_us(1024, 3000), 1))
        for size in (1024, 16384, 65536, 262144, 1 << 20, 16 << 20, 64 << 20):
            rate = pair.gb_per_s(size, min(1 << 29, size * 4000))
            print(name, size, "bytes GB/s", round(rate, 3))
        for page in (1024, 4096, 16384):
            print(name, page, "page Mop/s", round(pair.pages_per_s(page) / 1e6, 3))
        pair.close()
