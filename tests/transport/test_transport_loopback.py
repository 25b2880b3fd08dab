"""The core on a simulated network: faults drawn from a seed, one history per seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.errors import (
    BadTarget,
    DeadlineExceeded,
    PeerDown,
    TransferCancelled,
    TransportError,
)
from ratrain.transport import Config, Engine
from ratrain.transport.providers.loopback.network import LoopbackNetwork
from ratrain.transport.providers.loopback.simulation import Faults

SECRET = b"a secret of tests"


def pair(seed: int, faults: Faults) -> tuple[LoopbackNetwork, Engine, Engine]:
    net = LoopbackNetwork(seed, faults)
    a = Engine(Config(SECRET, "a", piece_bytes=4096, deadline_s=30.0), net.open)
    b = Engine(Config(SECRET, "b", piece_bytes=4096, deadline_s=30.0), net.open)
    return net, a, b


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), nics=st.integers(1, 3))
def test_reordered_and_doubled_pieces_give_the_same_bytes_and_counts(seed: int, nics: int) -> None:
    net, a, b = pair(seed, Faults(nics=nics, delay_s=(0.0, 0.01), duplicate=0.3))
    source = np.random.default_rng(seed).integers(0, 256, 50_001, np.uint8)
    target = np.zeros_like(source)
    region = b.register(target)
    src = a.register(source)
    transfers = [
        a.write(src[i * 5000 : i * 5000 + 5001], region.descriptor()[i * 5000 :], imm=7)
        for i in range(10)
    ]
    pages = a.write_paged(src, range(12), region.descriptor(), range(12), 4096, imm=8)
    b.counter(7).wait(10)
    for transfer in [*transfers, pages]:
        transfer.wait()
    net.run_until(lambda: False, 1.0)  # whatever is still on the wire arrives
    assert (target == source).all()
    assert b.counter(7).value == 0
    assert b.counter(8).value == 1


def mixed_history(seed: int) -> None:
    """Random operations on a bad network; then the three promises are checked."""
    rng = np.random.default_rng(seed)
    faults = Faults(
        nics=int(rng.integers(1, 4)),
        delay_s=(0.0, float(rng.choice([0.0001, 0.01, 0.5]))),
        duplicate=float(rng.choice([0.0, 0.2])),
        break_link=float(rng.choice([0.0, 0.01, 0.05])),
        stall_link=float(rng.choice([0.0, 0.02])),
    )
    net, a, b = pair(seed, faults)
    slots, size = 8, 12_288
    source = rng.integers(1, 256, (slots, size), np.uint8)
    target = np.zeros_like(source)
    kept = source.copy()
    region, src = b.register(target), a.register(source)
    began_s = net.now_s
    transfers = []
    for slot in range(slots):
        span = src[slot * size : (slot + 1) * size]
        place = region.descriptor()[slot * size :]
        deadline_s = float(rng.choice([0.005, 1.0, 20.0]))
        transfers.append((a.write(span, place, imm=100 + slot, deadline_s=deadline_s), deadline_s))
    events = rng.random(4)
    if events[0] < 0.3:
        net.at(
            float(rng.random() * 0.02), lambda: net.kill(b.address, silently=bool(events[1] < 0.5))
        )
    if events[2] < 0.4:
        victim = transfers[int(rng.integers(slots))][0]
        net.at(float(rng.random() * 0.02), victim.cancel)
    for slot, (transfer, deadline_s) in enumerate(transfers):
        try:
            transfer.wait(60.0)
            failed = False
        except TransportError:
            failed = True
        # Never a hang past its deadline (a tick of the simulated clock is 50 ms).
        assert transfer.done()
        assert net.now_s - began_s <= max(d for _, d in transfers[: slot + 1]) + 0.2
        del deadline_s
        if not failed:
            assert (target[slot] == kept[slot]).all()
    snapshot = target.copy()
    settled = [t for t, _ in transfers if t.landed is not None]
    net.run_until(lambda: False, 20.0)
    for slot, (transfer, _) in enumerate(transfers):
        counters = b.core.arrivals.counters
        arrived = counters[100 + slot].value if 100 + slot in counters else 0
        # Never a counter for data that did not land, and never twice.
        assert arrived <= 1
        if arrived:
            assert (target[slot] == kept[slot]).all()
        if transfer.error is None and b.address.incarnation not in net.killed:
            assert arrived == 1
        if isinstance(transfer.error, TransferCancelled):
            assert arrived == 0
        # Never a wrong byte: each is the old one or the new one, and none after the end.
        assert ((target[slot] == 0) | (target[slot] == kept[slot])).all()
        if transfer in settled:
            assert (target[slot] == snapshot[slot]).all()


@pytest.mark.parametrize("block", range(4))
def test_random_fault_schedules_keep_the_three_promises(block: int) -> None:
    for seed in range(block * 60, block * 60 + 60):
        mixed_history(seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_fault_schedules_keep_the_three_promises() -> None:
    for seed in range(10_000):
        mixed_history(seed + 1_000_000)


def test_arrivals_before_any_interest_are_kept_and_surplus_stays() -> None:
    net, a, b = pair(1, Faults())
    for _ in range(17):
        a.imm(b.address, 5).wait()
    fired: list[int] = []
    counter = b.counter(5)
    counter.expect(10, lambda: fired.append(10))
    counter.expect(4, lambda: fired.append(4))
    net.run_until(lambda: len(fired) == 2, 1.0)
    assert fired == [10, 4]
    assert counter.value == 3


def test_a_wait_for_a_source_that_dies_in_silence_raises_within_the_dead_time() -> None:
    net, a, b = pair(2, Faults())
    a.imm(b.address, 5).wait()
    counter = b.counter(5, sources=[a.address])
    counter.wait(1)
    net.kill(a.address, silently=True)
    began_s = net.now_s
    with pytest.raises(PeerDown):
        counter.wait(1, 60.0)
    assert net.now_s - began_s <= b.config.dead_s + 1.0


def test_a_peer_that_was_killed_before_first_contact_fails_in_the_connect_time() -> None:
    net, a, b = pair(3, Faults())
    net.kill(b.address, silently=True)
    transfer = a.imm(b.address, 1)
    with pytest.raises(PeerDown):
        transfer.wait(60.0)
    assert net.now_s <= a.config.connect_timeout_s + 0.2


def test_a_deadline_raises_in_time_and_the_peer_then_confirms_quiet() -> None:
    _, a, b = pair(4, Faults(delay_s=(0.5, 0.5)))
    a.connect(b.address)
    src, dst = a.register(bytearray(9000)), b.register(bytearray(9000))
    transfer = a.write(src, dst.descriptor(), imm=3, deadline_s=0.2)
    with pytest.raises(DeadlineExceeded):
        transfer.wait()
    assert transfer.wait_quiet(5.0)
    assert transfer.landed is not None
    assert b.counter(3).value == int(transfer.landed)


def test_one_fast_and_one_dead_nic_finish_the_write_with_one_count() -> None:
    net, a, b = pair(5, Faults(nics=2, delay_s=(0.001, 0.002)))
    source = np.arange(3_000_000, dtype=np.uint32).astype(np.uint8)
    target = np.zeros_like(source)
    src, dst = a.register(source), b.register(target)
    transfer = a.write(src, dst.descriptor(), imm=9)
    net.run_until(lambda: bool(a.core.peers[b.address.incarnation].links), 1.0)
    link = a.core.peers[b.address.incarnation].links[1]
    link.down("cut", reset=False)
    transfer.wait()
    assert (source == target).all()
    assert b.counter(9).value == 1
    assert a.stats()["peers"][str(b.address)]["resent_pieces"] > 0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_refused_write_drops_its_other_pieces_even_half_placed_and_frees_the_window(
    seed: int,
) -> None:
    net, a, b = pair(seed, Faults(nics=2, delay_s=(0.0, 0.01), duplicate=0.2))
    page, count = 1024, 24  # six pieces of four pages; the last page is out of bounds
    target = np.zeros((count, page), np.uint8)
    region, src = b.register(target), a.register(np.full(count * page, 7, np.uint8))
    forged = replace(region.descriptor(), size_bytes=1 << 30)
    pages = [*range(count - 1), 5000]
    transfer = a.write_paged(src, range(count), forged, pages, page, imm=4)
    net.run_until(lambda: b.stats()["refused"] > 0, 10.0)
    snapshot = target.copy()
    with pytest.raises(BadTarget, match="leaves the region"):
        transfer.wait()
    net.run_until(lambda: False, 1.0)  # whatever is still on the wire arrives
    assert (target == snapshot).all()
    assert b.stats()["refused"] == 1
    assert b.counter(4).value == 0
    links = a.core.peers[b.address.incarnation].links
    assert all(not k.unacked and k.unacked_bytes == 0 for k in links)
    a.write(src, region.descriptor(), imm=5).wait()
    assert (target == 7).all()


def test_barriers_count_rounds_per_member_and_name_a_dead_one() -> None:
    net = LoopbackNetwork(6, Faults(delay_s=(0.0, 0.01)))
    engines = [Engine(Config(SECRET, f"r{i}"), net.open) for i in range(4)]
    addresses = [e.address for e in engines]
    groups = [e.peer_group(addresses) for e in engines]
    for _ in range(3):  # a fast member may be a round ahead: the others' counts are their own
        for engine in engines[1:]:
            for other in addresses:
                if other != engine.address:
                    engine.imm(other, 77)
    for _ in range(3):
        groups[0].barrier(77, 5.0)
    net.kill(addresses[3], silently=False)
    with pytest.raises(TransportError):
        groups[0].barrier(77, 5.0)


def test_immediates_of_a_released_block_are_dropped_and_counted_as_stale() -> None:
    _, a, b = pair(7, Faults())
    block = b.imm_block(2)
    old = block.values[0]
    block.release()
    a.imm(b.address, old).wait()
    a.imm(b.address, block.values[0]).wait()
    assert b.counter(block.values[0]).value == 1
    assert b.stats()["stale_imm"] == 1


def test_a_pinned_write_uses_only_its_nic_and_one_without_its_nic_holds_up_no_other() -> None:
    net, a, b = pair(8, Faults(nics=2))
    src, dst = a.register(bytearray(3_000_000)), b.register(bytearray(3_000_000))
    a.connect(b.address)
    a.write(src, dst.descriptor(), nics=["nic1"]).wait()
    sent = {k["nic"]: k["acked_bytes"] for k in a.stats()["peers"][str(b.address)]["links"]}
    assert sent == {"nic0": 0, "nic1": 3_000_000}
    stuck = a.write(src, dst.descriptor(), nics=["nic7"], deadline_s=5.0)
    a.write(src, dst.descriptor()).wait()
    assert net.now_s < 4.0
    with pytest.raises(DeadlineExceeded):
        stuck.wait()
