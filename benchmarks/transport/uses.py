"""The three uses, all engines in this process (so one interpreter lock): `uses.py PROVIDER`."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from ratrain.transport import Config, Engine
from ratrain.transport.uses.experts import ExpertExchange
from ratrain.transport.uses.kvcache import PagePool, send_pages
from ratrain.transport.uses.weights import Publisher, Subscriber, shard, size_of


def engines(count: int, provider: str) -> list[Engine]:
    """Engines of one job."""
    secret = b"benchmark secret"
    return [Engine(Config(secret, f"e{i}", providers=(provider,))) for i in range(count)]


def weights(provider: str) -> str:
    """Two trainers (rows) to one server (whole), 64 MiB."""
    first, second, server = engines(3, provider)
    shapes = {f"w{i}": (1024, 1024) for i in range(16)}
    held = {e.address: shard(shapes, 4, 0, i, 2) for i, e in enumerate((first, second))}
    publishers = [
        Publisher(e, held[e.address], np.ones(size_of(held[e.address]), np.uint8))
        for e in (first, second)
    ]
    subscriber, times = Subscriber(server, shard(shapes, 4, 0, 0, 1)), []
    for _ in range(6):
        offer, began = subscriber.offer(), time.perf_counter()
        for publisher in publishers:
            publisher.publish([offer])
        subscriber.accept(held)
        times.append(time.perf_counter() - began)
    for engine in (first, second, server):
        engine.close()
    return f"weights: 64 MiB in {statistics.median(times) * 1e3:.1f} ms"


def kvcache(provider: str) -> str:
    """512 pages of 16 KiB for one request."""
    prefill, decode = engines(2, provider)
    pool, times = PagePool(decode, 512, 16384), []
    region = prefill.register(np.ones((1024, 16384), np.uint8), remote=False)
    pages = np.random.default_rng(0).permutation(1024)[:512]
    for _ in range(10):
        ticket, began = pool.reserve(512), time.perf_counter()
        send_pages(prefill, ticket, region, pages)
        pool.wait(ticket, prefill.address)
        times.append(time.perf_counter() - began)
        pool.release(ticket)
    prefill.close()
    decode.close()
    return f"kvcache: 8 MiB in 512 pages in {statistics.median(times[1:]) * 1e3:.2f} ms"


def experts(provider: str) -> str:
    """128 tokens of 7168 floats, 8 experts each, on four ranks."""
    four, tokens, hidden, top = engines(4, provider), 128, 7168, 8
    exchanges = [ExpertExchange(e, i, 4, hidden, tokens * top) for i, e in enumerate(four)]
    for exchange in exchanges:
        exchange.join([x.inbox for x in exchanges])
    took: list[tuple[float, float]] = []

    def work(rank: int) -> None:
        rng = np.random.default_rng(rank)
        table = rng.standard_normal((tokens, hidden)).astype(np.float32)
        for _ in range(5):
            chosen = rng.integers(0, 64, (tokens, top))
            share = rng.random((tokens, top)).astype(np.float32)
            began = time.perf_counter()
            rows, _ = exchanges[rank].dispatch(table, chosen, share, 16)
            middle = time.perf_counter()
            exchanges[rank].combine(rows)
            took.append((middle - began, time.perf_counter() - middle))

    threads = [threading.Thread(target=work, args=(r,)) for r in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in four:
        engine.close()
    dispatch, combine = (statistics.median(t[i] for t in took) * 1e3 for i in (0, 1))
    return f"experts: dispatch {dispatch:.1f} ms, combine {combine:.1f} ms (4 ranks)"


if __name__ == "__main__":
    for use in (weights, kvcache, experts):
        print(sys.argv[1], use(sys.argv[1]))
