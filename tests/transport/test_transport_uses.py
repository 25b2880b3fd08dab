"""The three uses over real sockets and memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from kinds import options

from ratrain.errors import Infeasible, PeerDown, TransportError
from ratrain.transport import Config, Engine
from ratrain.transport.uses.experts import ExpertExchange
from ratrain.transport.uses.kvcache import PagePool, Ticket, send_pages
from ratrain.transport.uses.weights import Publisher, Subscriber, shard, size_of

SECRET = b"a secret of tests"
SHAPES = {"embed": (64, 48), "w1": (96, 48), "norm": (48,)}


@pytest.fixture
def four(provider: str) -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        config = [Config(SECRET, f"e{i}", **options(provider), deadline_s=10) for i in range(4)]
        yield [stack.enter_context(Engine(c)) for c in config]


def full(version: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(version)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}


def packed(tensors: dict[str, np.ndarray], axis: int, index: int, count: int) -> np.ndarray:
    parts = [np.split(t, count, min(axis, t.ndim - 1))[index].reshape(-1) for t in tensors.values()]
    return np.concatenate(parts).view(np.uint8)


def test_weights_reshard_from_rows_to_columns_and_swap_whole_versions(four: list[Engine]) -> None:
    trainers, servers = four[:2], four[2:]
    held = [shard(SHAPES, 4, 0, i, 2) for i in range(2)]
    sources = {e.address: h for e, h in zip(trainers, held, strict=True)}
    subscribers = [Subscriber(e, shard(SHAPES, 4, 1, i, 2)) for i, e in enumerate(servers)]
    for version in (1, 2, 3):
        offers = [s.offer() for s in subscribers]
        for i, engine in enumerate(trainers):
            memory = packed(full(version), 0, i, 2)
            for transfer in Publisher(engine, held[i], memory).publish(offers):
                transfer.wait()
        for i, subscriber in enumerate(subscribers):
            assert subscriber.accept(sources) == version
            assert (subscriber.weights == packed(full(version), 1, i, 2)).all()


def test_an_interrupted_publish_leaves_the_old_weights_whole_and_the_next_one_works(
    four: list[Engine],
) -> None:
    first, two, server, _ = four
    held = [shard(SHAPES, 4, 0, i, 2) for i in range(2)]
    subscriber = Subscriber(server, shard(SHAPES, 4, 0, 0, 1))
    sources = {first.address: held[0], two.address: held[1]}

    def send(engine: Engine, index: int, version: int, offer: object) -> None:
        memory = packed(full(version), 0, index, 2)
        for transfer in Publisher(engine, held[index], memory).publish([offer]):  # type: ignore[list-item]
            transfer.wait()

    offer = subscriber.offer()
    send(first, 0, 1, offer)
    send(two, 1, 1, offer)
    subscriber.accept(sources)
    before = subscriber.weights.copy()
    late = subscriber.offer()
    send(first, 0, 2, late)  # half of version 2, then its other half's holder dies
    two.close()
    with pytest.raises(PeerDown):
        subscriber.accept(sources, 5)
    assert subscriber.version == 1
    assert (subscriber.weights == before).all()
    with pytest.raises(TransportError):
        send(first, 0, 2, late)
    again = subscriber.offer()
    whole = shard(SHAPES, 4, 0, 0, 1)
    memory = packed(full(3), 0, 0, 1)
    for transfer in Publisher(first, whole, memory).publish([again]):
        transfer.wait()
    assert subscriber.accept({first.address: whole}) == 2
    assert (subscriber.weights == memory).all()


def test_kv_pages_move_and_cancelled_pages_are_never_touched_again(four: list[Engine]) -> None:
    prefill, other, decode, _ = four
    pool = PagePool(decode, 64, 4096)
    cache = np.random.default_rng(0).integers(1, 256, (256, 4096), np.uint8)
    region = prefill.register(cache, remote=False)
    ticket = Ticket.from_bytes(pool.reserve(40).to_bytes())
    send_pages(prefill, ticket, region, range(100, 140)).wait()
    pool.wait(ticket, prefill.address)
    assert (pool.memory[list(ticket.pages)] == cache[100:140]).all()
    with pytest.raises(Infeasible):
        pool.reserve(25)
    cancelled = pool.reserve(24)
    pool.release(cancelled)  # before the prefill side has written
    pool.memory[:] = 0
    with pytest.raises(TransportError):
        send_pages(prefill, cancelled, region, range(24)).wait()
    assert not pool.memory.any()
    orphan = pool.reserve(24)  # its prefill process leaves, another one joins
    other.imm(decode.address, 1).wait()
    other.close()
    with pytest.raises(PeerDown):
        pool.wait(orphan, other.address)
    assert pool.free_pages == 24
    pool.release(ticket)
    assert pool.free_pages == 64
    assert size_of(()) == 0


def test_tokens_reach_their_experts_and_come_back_weighted_whatever_the_counts(
    four: list[Engine],
) -> None:
    hidden, per_rank, top = 16, 2, 2
    exchanges = [ExpertExchange(e, i, 4, hidden, capacity=64) for i, e in enumerate(four)]
    for exchange in exchanges:
        exchange.join([x.inbox for x in exchanges])
    scale = np.arange(1, 9, dtype=np.float32)  # expert e multiplies by e + 1
    got: dict[tuple[int, int], bool] = {}

    def work(rank: int) -> None:
        rng = np.random.default_rng(rank)
        for step in range(5):
            n = int(rng.integers(0, 30))  # ragged, zero included
            tokens = rng.standard_normal((n, hidden)).astype(np.float32)
            experts = rng.integers(0, 8, (n, top)) if step % 2 else np.full((n, top), step)
            weights = rng.random((n, top)).astype(np.float32)
            rows, local = exchanges[rank].dispatch(tokens, experts, weights, per_rank)
            out = exchanges[rank].combine(rows * scale[local + rank * per_rank][:, None])
            want = tokens * (scale[experts] * weights).sum(1)[:, None]
            got[rank, step] = np.allclose(out, want, rtol=1e-5, atol=1e-5)

    threads = [threading.Thread(target=work, args=(r,)) for r in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert got == {(r, s): True for r in range(4) for s in range(5)}
