"""The surface over real sockets and real memory, for each provider."""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from kinds import ALL, FABRIC_SHM, options, skip_if_absent

from ratrain.errors import (
    BadTarget,
    DeadlineExceeded,
    EngineClosed,
    PeerDown,
    SpecError,
    TransferCancelled,
    TransportError,
)
from ratrain.transport import Address, Config, Descriptor, Engine, Target
from ratrain.transport.memory.segments import create, map_peer
from ratrain.transport.providers.shm import ShmChannel
from ratrain.transport.providers.station import SocketStation

SECRET = b"a secret of tests"
Two = tuple[Engine, Engine]
PIECE = 1 << 20


@pytest.fixture(params=[*ALL, FABRIC_SHM])
def provider(request: pytest.FixtureRequest) -> str:
    skip_if_absent(request.param)
    return request.param


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, size, np.uint8)


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193, PIECE - 1, PIECE, PIECE + 1, 9 << 20])
@pytest.mark.parametrize("shift", [0, 3])
def test_bytes_are_exact_for_every_size_and_odd_offset(engines: Two, size: int, shift: int) -> None:
    a, b = engines
    source, target = noise(size + 10), np.zeros(size + 10, np.uint8)
    src, dst = a.register(source), b.register(target)
    place = Descriptor.from_bytes(dst.descriptor().to_bytes())
    a.write(src[shift : shift + size], place[10 - shift :][: size + shift][shift:], imm=1).wait()
    assert b.counter(1).value == 1
    assert (target[10 : 10 + size] == source[shift : shift + size]).all()
    assert not target[:10].any()


@pytest.mark.slow
def test_a_write_of_more_than_a_gibibyte_is_exact(engines: Two) -> None:
    a, b = engines
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 6 << 30:
        pytest.skip("needs 6 GiB of free memory")
    size = (1 << 30) + 1
    source, target = np.arange(size // 8 + 1).view(np.uint8)[:size], np.zeros(size, np.uint8)
    a.write(a.register(source), b.register(target).descriptor(), imm=4, deadline_s=240).wait()
    assert b.counter(4).value == 1
    assert np.array_equal(source, target)


@pytest.mark.parametrize("when", ["before", "after"])
def test_memory_that_the_engine_allocated_is_written_exactly_and_mapped_where_it_can_be(
    engines: Two, provider: str, when: str
) -> None:
    a, b = engines
    if when == "after":
        a.connect(b.address)
    source, target = a.allocate(3 << 20), np.zeros(3 << 20, np.uint8)
    source[:] = noise(3 << 20)
    src, dst = a.register(source, remote=False), b.register(target)
    for span in (slice(0, 3 << 20), slice(5, 100_000), slice((3 << 20) - 9000, 3 << 20)):
        target[:] = 0
        a.write(src[span], dst.descriptor()[span], imm=1).wait()
        assert (target[span] == source[span]).all()
        assert not target[: span.start].any()
        assert not target[span.stop :].any()
    assert b.counter(1).value == 3
    channel = b.core.peers[a.address.incarnation].links[0].channel
    assert isinstance(channel, ShmChannel) == (provider == "shm")
    if isinstance(channel, ShmChannel):
        assert len(channel._mapped) == 1


def test_a_peers_descriptor_that_could_shrink_is_never_mapped() -> None:
    fd = os.memfd_create("loose")
    os.ftruncate(fd, 8192)
    assert map_peer(os.getpid(), fd, 4096, 8192) is None
    sealed = create(8192)
    assert map_peer(os.getpid(), sealed.fd, 4096, 8193) is None
    assert map_peer(os.getpid(), 987_654, 4096, 8192) is None
    mapped = map_peer(os.getpid(), sealed.fd, sealed.base, 8192)
    assert mapped is not None
    sealed.array[8191] = 7
    assert mapped.array[8191] == 7
    os.close(fd)
    os.close(sealed.fd)


@pytest.mark.parametrize("value", [0, 1, 2**32 - 1])
def test_an_immediate_alone_counts_once(engines: Two, value: int) -> None:
    a, b = engines
    a.imm(b.address, value).wait()
    b.counter(value).wait(1)
    assert b.counter(value).value == 0


@pytest.mark.parametrize("page", [1, 1000, 4096, 16384])
def test_pages_land_where_they_belong_with_strides_and_offsets(engines: Two, page: int) -> None:
    a, b = engines
    rng = np.random.default_rng(page)
    source, target = noise(1 << 21), np.zeros((1 << 21) + 64, np.uint8)
    stride = page + 24
    slots = (1 << 21) // stride - 1
    from_, to = rng.permutation(slots)[:3000], rng.permutation(slots)[:3000]
    src, dst = a.register(source), b.register(target)
    a.write_paged(
        src, from_, dst.descriptor()[64:], to, page, src_stride=stride, dst_stride=stride, imm=2
    ).wait()
    assert b.counter(2).value == 1
    view = target[64:]
    for f, t in zip(from_.tolist(), to.tolist(), strict=True):
        assert (
            view[t * stride : t * stride + page] == source[f * stride : f * stride + page]
        ).all()
    assert np.count_nonzero(target) == len(to) * page


def test_an_empty_page_list_counts_and_a_hundred_thousand_pages_count_once_or_each(
    engines: Two,
) -> None:
    a, b = engines
    src, dst = a.register(noise(100_000 * 8)), b.register(bytearray(100_000 * 8))
    a.write_paged(src, [], dst.descriptor(), [], 8, imm=3).wait()
    pages = np.arange(100_000)
    a.write_paged(src, pages, dst.descriptor(), pages, 8, imm=3).wait()
    assert b.counter(3).value == 2
    a.write_paged(src, pages[:7], dst.descriptor(), pages[:7], 8, imm=5, imm_per="page").wait()
    assert b.counter(5).value == 7
    assert bytes(src.view) == bytes(dst.view)


@pytest.mark.parametrize("mapped", [True, False])
def test_pages_move_within_memory_that_is_source_and_target_at_once(
    engines: Two, mapped: bool
) -> None:
    a, b = engines
    count, page = 600, 5000
    memory = a.allocate(count * page) if mapped else np.zeros(count * page, np.uint8)
    memory[:] = noise(count * page)
    before = memory.copy().reshape(count, page)
    order = np.random.default_rng(3).permutation(count)
    from_, to = order[: count // 2], order[count // 2 :]
    here, there = a.register(memory), b.register(memory).descriptor()
    a.write_paged(here, from_, there, to, page, imm=2).wait()
    assert b.counter(2).value == 1
    after = memory.reshape(count, page)
    assert (after[to] == before[from_]).all()
    assert (after[from_] == before[from_]).all()


def test_scatters_and_pages_beyond_four_gibibytes_land_where_they_belong(engines: Two) -> None:
    a, b = engines
    size, edge, flags = (9 << 29), 4 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
    spaces = [mmap.mmap(-1, size, flags=flags) for _ in range(2)]  # 0x4000: MAP_NORESERVE
    source, target = (np.frombuffer(space, np.uint8) for space in spaces)
    src, dst = a.register(source), b.register(target).descriptor()
    rows = [  # source offset, target offset, length
        (edge - 3, edge + 100_001, 70_001),
        (edge + 200_003, 5, 40_000),
        (7, edge - 20_000, 20_001),
        (size - 9000, size - 9001, 9000),
    ]
    for start, _, length in rows:
        source[start : start + length] = noise(length, start)
    targets = [Target(s, n, dst[t : t + n], imm=1) for s, t, n in rows]
    for transfer in a.scatter(src, targets):
        transfer.wait()
    assert b.counter(1).value == len(rows)
    for start, to, length in rows:
        assert (target[to : to + length] == source[start : start + length]).all()
        assert not target[to - 1 if to else 0]
    page = 1 << 16
    far_pages = edge // page + np.arange(3)
    for number in far_pages.tolist():
        source[number * page :][:page] = noise(page, number)
    a.write_paged(src, far_pages, dst, far_pages[::-1] + 40, page, imm=2).wait()
    for from_, to in zip(far_pages.tolist(), (far_pages[::-1] + 40).tolist(), strict=True):
        assert (target[to * page :][:page] == source[from_ * page :][:page]).all()


def test_scatter_of_odd_lengths_gives_one_count_for_each_target(engines: Two) -> None:
    a, b = engines
    source, target = noise(10_007), np.zeros(10_007, np.uint8)
    dst = b.register(target).descriptor()
    cuts = [0, 1, 4098, 4099, 10_007]
    spans = list(pairwise(cuts))
    targets = [Target(s, e - s, dst[s:e], imm=6) for s, e in spans]
    for transfer in a.scatter(a.register(source), targets):
        transfer.wait()
    assert b.counter(6).value == len(spans)
    assert (source == target).all()


def test_a_wrong_key_a_revoked_region_and_a_write_past_the_end_are_typed_and_place_nothing(
    engines: Two,
) -> None:
    a, b = engines
    target = np.zeros(3 << 20, np.uint8)
    src, dst = a.register(noise(3 << 20)), b.register(target)
    good = dst.descriptor()
    for bad in (replace(good, key=12345), replace(good, offset=1000)):
        with pytest.raises(BadTarget):
            a.write(src, bad, imm=8).wait()
    with pytest.raises(BadTarget):
        a.write(src, good[1:])
    page = 4096
    with pytest.raises(BadTarget):
        pages = a.write_paged(src, [0], replace(good, size_bytes=1 << 40), [1 << 20], page, imm=8)
        pages.wait()
    assert not target.any()
    assert b.counter(8).value == 0
    a.write(src, good, imm=8).wait()
    b.counter(8).wait(1)
    b.revoke(dst)
    with pytest.raises(BadTarget):
        a.write(src, good, imm=8).wait()
    a.imm(b.address, 8).wait()


def test_no_byte_changes_after_revoke_has_returned(engines: Two) -> None:
    a, b = engines
    src = a.register(noise(16 << 20))
    for round_ in range(5):
        target = np.zeros(16 << 20, np.uint8)
        dst = b.register(target)
        transfer = a.write(src, dst.descriptor(), imm=9)
        time.sleep(0.001 * round_)
        b.revoke(dst)
        before = target.copy()
        try:
            transfer.wait()
            landed = 1
        except BadTarget:
            landed = 0
        assert (target == before).all()
        assert b.counter(9).value == landed
        if landed:
            b.counter(9).wait(1)


def test_pages_can_be_reused_at_once_after_cancel_at_any_point(engines: Two) -> None:
    a, b = engines
    src = a.register(noise(8 << 20))
    target = np.zeros(8 << 20, np.uint8)
    dst = b.register(target)
    a.connect(b.address)
    for round_ in range(10):
        transfer = a.write(src, dst.descriptor(), imm=10)
        time.sleep(0.0004 * round_)
        transfer.cancel()
        try:
            transfer.wait(5)
        except TransferCancelled:
            assert b.counter(10).value == 0
        else:
            b.counter(10).wait(1)
        target[:] = 0
        time.sleep(0.002)
        assert not target.any()


def test_registering_counts_holders_and_a_new_length_is_a_new_region(engines: Two) -> None:
    a, b = engines
    memory = np.zeros(100, np.uint8)
    first, two, part = b.register(memory), b.register(memory), b.register(memory[:50])
    assert first is two
    assert part is not first
    b.revoke(first)
    a.write(a.register(noise(50)), two.descriptor()).wait()
    b.revoke(two)
    with pytest.raises(BadTarget):
        a.write(a.register(noise(50)), two.descriptor()).wait()
    a.write(a.register(noise(50)), part.descriptor()).wait()


def test_messages_wait_for_buffers_and_none_is_lost(engines: Two) -> None:
    a, b = engines
    got: list[bytes] = []

    def slow(source: Address, data: bytes) -> None:
        assert source == a.address
        time.sleep(0.0005)
        got.append(data)

    early = a.send(b.address, b"before there is a pool")
    b.recv_pool(3, 64, slow)
    sent = [a.send(b.address, f"message {i}".encode()) for i in range(200)]
    for transfer in [early, *sent]:
        transfer.wait()
    with pytest.raises(BadTarget):
        a.send(b.address, bytes(65)).wait()
    assert b.wait_until(lambda: len(got) == 201, 5.0)
    assert sorted(got)[1:] == sorted(f"message {i}".encode() for i in range(200))


def test_a_callback_that_raises_stops_nothing_and_one_that_submits_does_not_block(
    engines: Two,
) -> None:
    a, b = engines
    a.imm(b.address, 1).wait()
    errors: list[BaseException] = []
    object.__setattr__(b.config, "on_callback_error", errors.append)
    b.counter(1).wait(1)
    b.counter(1).expect(1, lambda: 1 / 0)
    b.counter(2).expect(1, lambda: [b.imm(a.address, 3) for _ in range(3000)])
    a.imm(b.address, 1)
    a.imm(b.address, 2)
    a.counter(3).wait(3000)
    assert isinstance(errors[0], ZeroDivisionError)


def test_a_transfer_can_be_awaited_and_calls_back_on_the_dispatcher(engines: Two) -> None:
    a, b = engines
    src, dst = a.register(noise(5000)), b.register(bytearray(5000))

    async def main() -> int:
        return sum([await a.write(src, dst.descriptor()) for _ in range(3)])

    assert asyncio.run(main()) == 15_000
    names: list[str] = []
    done = threading.Event()

    def note(_: object) -> None:
        names.append(threading.current_thread().name)
        done.set()

    a.write(src, dst.descriptor()).add_done_callback(note)
    assert done.wait(5)
    assert names == ["ratnet-calls-a"]


def test_many_threads_write_to_one_region_and_the_sum_is_exact(engines: Two) -> None:
    a, b = engines
    src, dst = a.register(noise(8 * 4096)), b.register(bytearray(8 * 4096))

    def work(index: int) -> None:
        span = slice(index * 4096, index * 4096 + 4096)
        for _ in range(50):
            a.write(src[span], dst.descriptor()[span], imm=11).wait()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    b.counter(11).wait(400)
    for thread in threads:
        thread.join()
    assert b.counter(11).value == 0
    assert bytes(src.view) == bytes(dst.view)


@pytest.mark.slow
def test_a_word_shows_a_rising_value_and_always_the_last(engines: Two) -> None:
    a, _ = engines
    seen: list[int] = []
    word = a.watch(lambda _, new: seen.append(new) or new < 500)
    for value in range(1, 501):
        word.set(value)
    assert a.wait_until(lambda: bool(seen) and seen[-1] == 500, 2.0)
    assert seen == sorted(seen)
    word.set(501)
    time.sleep(0.02)
    assert seen[-1] == 500


def test_a_word_in_memory_shows_what_a_peer_writes_there(engines: Two) -> None:
    a, b = engines
    cell, seen = np.zeros(1, np.int64), list[tuple[int, int]]()
    word = b.watch(lambda old, new: seen.append((old, new)), memory=cell)
    source = np.zeros(1, np.int64)
    src, dst = a.register(source), b.register(cell).descriptor()
    for value in (5, -7, 2**62):
        source[0] = value
        a.write(src, dst).wait()
        end_s = time.monotonic() + 5.0
        while word.value != value or not seen or seen[-1][1] != value:
            assert time.monotonic() < end_s
            time.sleep(0.001)
    assert seen == [(0, 5), (5, -7), (-7, 2**62)]
    word.stop()
    cell[0] = 1
    time.sleep(0.05)
    assert seen[-1] == (-7, 2**62)


def test_a_word_ends_by_false_or_with_its_engine_and_not_by_an_exception() -> None:
    engine, seen = Engine(Config(SECRET, "w", providers=("sock",))), list[int]()

    def once(_: int, new: int) -> bool:
        seen.append(new)
        return False

    def fail(_: int, new: int) -> None:
        seen.append(new)
        raise ValueError("a fault of tests")

    words = [engine.watch(once), engine.watch(fail), engine.watch(fail, memory=bytearray(8))]
    for number, word in enumerate(words):
        for value in (1, 2, 3):
            word.set(10 * number + value)
            time.sleep(0.05)
    assert seen == [1, 11, 12, 13, 21, 22, 23]
    assert engine.callback_errors == 6
    with pytest.raises(SpecError, match="watched word of 4 bytes"):
        engine.watch(once, memory=bytearray(4))
    with pytest.raises(SpecError, match="watched word of 8 bytes"):
        engine.watch(once, memory=np.zeros(16, np.uint8)[1:9])
    with pytest.raises(SpecError, match="read-only"):
        engine.watch(once, memory=bytes(8))
    engine.close()
    assert engine._words
    for word in engine._words:
        word._thread.join(5)
        assert not word._thread.is_alive()


def test_barriers_of_threads_meet_every_round(provider: str) -> None:
    engines = [Engine(Config(SECRET, f"r{i}", **options(provider))) for i in range(3)]
    addresses = [e.address for e in engines]
    rounds = np.zeros(3, int)

    def work(index: int) -> None:
        group = engines[index].peer_group(addresses)
        for _ in range(60):
            rounds[index] += 1
            group.barrier(99, 20.0)
            assert rounds.min() >= rounds[index] - 0
            group.barrier(98, 20.0)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert rounds.tolist() == [60, 60, 60]
    with pytest.raises(DeadlineExceeded):
        engines[0].peer_group(addresses).barrier(97, 0.2)
    for engine in engines:
        engine.close()


def caught(call: Callable[[], object]) -> type:
    try:
        call()
    except Exception as error:
        return type(error)
    return type(None)


def test_a_closed_engine_fails_its_waiters_tells_its_peers_and_closes_twice(provider: str) -> None:
    a = Engine(Config(SECRET, "a", **options(provider)))
    b = Engine(Config(SECRET, "b", **options(provider)))
    a.imm(b.address, 1).wait()
    stuck = a.send(b.address, b"nobody has a pool")
    waiting = b.counter(5, sources=[a.address])
    hanging = threading.Thread(target=lambda: failed.append(caught(a.counter(6).wait)))
    failed: list[type] = []
    hanging.start()
    time.sleep(0.05)
    a.close()
    a.close()
    hanging.join(5)
    assert failed == [EngineClosed]
    with pytest.raises(EngineClosed):
        stuck.wait()
    with pytest.raises(PeerDown):
        waiting.wait(1)
    with pytest.raises(EngineClosed):
        a.imm(b.address, 1)
    b.close()


def break_loop(engine: Engine) -> list[socket.socket]:
    """Let the loop of `engine` meet an exception that no part of it should raise."""

    def boom(_: int) -> None:
        raise ZeroDivisionError("a fault of tests")

    ours, theirs = socket.socketpair()
    station = engine.core.station
    assert isinstance(station, SocketStation)
    with station.lock:
        station.driver.add(ours.fileno(), boom)
    theirs.send(b"x")
    return [ours, theirs]  # to be kept: epoll forgets a closed file


def test_an_unexpected_exception_in_the_loop_fails_everything_with_its_cause(
    engines: Two,
) -> None:
    a, b = engines
    a.imm(b.address, 1).wait()
    stuck = a.send(b.address, b"nobody has a pool")
    ended = threading.Event()
    stuck.add_done_callback(lambda _: ended.set())
    kept = break_loop(a)  # nobody waits: the background thread meets it
    assert ended.wait(5)
    for call in (stuck.wait, lambda: a.counter(1), lambda: a.imm(b.address, 1)):
        with pytest.raises(TransportError, match="loop failed: ZeroDivisionError: a fault"):
            call()
    assert b.wait_until(lambda: b.why_down(a.address) is not None, 5)
    a.close()
    del kept


def test_a_waiter_that_meets_an_exception_in_the_loop_gets_the_error_and_so_do_the_others(
    engines: Two,
) -> None:
    a, b = engines
    a.imm(b.address, 1).wait()
    raised: list[type] = []
    counter = a.counter(5)
    others = [threading.Thread(target=lambda: raised.append(caught(counter.wait))) for _ in "ab"]
    for thread in others:
        thread.start()
    time.sleep(0.05)
    kept = break_loop(a)
    for thread in others:
        thread.join(5)
    assert raised == [TransportError, TransportError]
    assert b.wait_until(lambda: b.why_down(a.address) is not None, 5)
    del kept


def test_a_forked_child_is_told_to_open_its_own_engine(engines: Two) -> None:
    a, b = engines
    pid = os.fork()
    if pid == 0:
        try:
            a.imm(b.address, 1)
        except EngineClosed:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    a.imm(b.address, 1).wait()


@pytest.mark.slow
def test_two_hundred_engines_leave_no_descriptor_thread_or_file_behind(provider: str) -> None:
    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    config = Config(SECRET, **options(provider))
    with Engine(config) as b:
        with Engine(config) as a:
            a.imm(b.address, 1).wait()
        time.sleep(0.05)
        before = held()
        for _ in range(200):
            with Engine(config) as a:
                a.imm(b.address, 1).wait()
        # Fewer is sound: on a loaded machine the first engine's may still have been counted.
        assert b.wait_until(lambda: held() <= before and held()[1] <= before[1], 5.0), held()


@pytest.mark.slow
def test_an_idle_engine_uses_almost_no_processor_time(engines: Two) -> None:
    a, b = engines
    a.imm(b.address, 1).wait()
    time.sleep(0.1)

    def taken_s() -> float:
        before = time.process_time()
        time.sleep(1.0)
        return time.process_time() - before

    # Two engines, on a slow machine under load. Others only ever add to it, so the least counts.
    assert min(taken_s() for _ in range(3)) < 0.04


def test_options_that_cannot_work_are_refused_with_a_fix() -> None:
    with pytest.raises(SpecError, match="secret"):
        Config(b"short")
    with pytest.raises(SpecError, match="provider"):
        Config(SECRET, providers=("pigeon",))
    with pytest.raises(SpecError, match="no interface"):
        Engine(Config(SECRET, nics=("nosuch0",)))
    with pytest.raises(SpecError):
        Descriptor.from_bytes(b"{}")
