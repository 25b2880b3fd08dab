"""How far the ports of a lab are from each other, by its cluster file: pairs, queues, refusals."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import asdict

import pytest
from clusters import apart, cluster, device, host, link, plain
from hypothesis import given
from hypothesis import strategies as st

from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.presets import cluster_preset
from ratrain.errors import Infeasible, SpecError
from ratrain.lab import wires
from ratrain.lab.delays import LEAST_S, MOST_ON_THE_WAY_BYTES, Delay, buffers, delays, lines
from ratrain.lab.ports import Port, ports
from ratrain.lab.relay import Queue
from ratrain.lab.relay_order import Buffers, Held, Order, order_from


def made(spec: ClusterSpec) -> tuple[tuple[Port, ...], tuple[Delay, ...]]:
    all_ports = ports(spec, spec.size or 0)
    return all_ports, delays(spec.name, all_ports)


def test_pairs_that_are_far_get_their_level_s_latency_both_ways_and_near_ones_get_none() -> None:
    _, (far,) = made(apart("20ms"))
    assert far.latency_s == 0.02
    assert sorted(far.pairs) == [(0, 2), (1, 2), (2, 0), (2, 1)]


def test_each_latency_of_a_cluster_has_an_interface_of_its_own() -> None:
    links = link(latency="1ms") + link("site", latency="3ms") + link("world", latency="9ms")
    rooms = host() + host().replace("site =", 'room = "upstairs"\nsite =') + host(site="there")
    _, added = made(cluster(device(), rooms, links))
    assert [delay.latency_s for delay in added] == [0.001, 0.003, 0.009]
    assert len({delay.interface for delay in added}) == 3
    pairs = [pair for delay in added for pair in delay.pairs]
    assert len(pairs) == len(set(pairs)) == 6 * 5


def test_between_unequal_hosts_the_latency_is_the_slower_link_s() -> None:
    slower = '[host.links.room]\nlatency = "7ms"\nbandwidth = "10Mbit/s"\nsource = "made up"\n'
    mixed = cluster(device("a"), device("b"), host("a"), host("b"), slower, link(latency="2ms"))
    mixed_ports, _ = made(mixed)
    assert [mixed_ports[0].latency_to(mixed_ports[n]) for n in (1, 2)] == [0.002, 0.007]
    assert mixed_ports[2].latency_to(mixed_ports[0]) == 0.007


@pytest.mark.parametrize("preset", ["lab-mixed", "cpu-lab"])
def test_a_lab_of_short_latencies_is_made_of_the_same_wires_as_before(preset: str) -> None:
    made_ports, none = made(cluster_preset(preset))
    assert none == ()
    assert wires.redirect_lines(made_ports, none) == []
    assert "this machine's own" in lines(made_ports, none, "")[0]


def test_a_latency_is_emulated_from_the_least_on() -> None:
    assert made(apart(f"{LEAST_S * 1e6:g}us"))[1] != ()
    assert made(apart(f"{LEAST_S * 1e6 - 1:g}us"))[1] == ()


@given(latency_ms=st.integers(1, 200), mbit=st.integers(1, 900))
def test_a_queue_holds_twice_what_all_senders_have_in_flight(latency_ms: int, mbit: int) -> None:
    _, (far,) = made(apart(f"{latency_ms}ms", f"{mbit}Mbit/s"))
    in_flight = 3 * mbit * 1e6 / 8 * latency_ms * 1e-3  # three ports send
    assert far.on_the_way_bytes == pytest.approx(in_flight, abs=1)
    assert far.queue_bytes >= 2 * in_flight


def test_more_in_flight_than_a_lab_holds_is_refused_by_its_link_s_name() -> None:
    rate, latency_s = 3 * 1e9 / 8, 1.0
    assert rate * latency_s > MOST_ON_THE_WAY_BYTES
    with pytest.raises(Infeasible, match=r"in flight.*at most 268 MB") as refused:
        made(apart("1s", "1Gbit/s"))
    assert "[links.world]" in str(refused.value)
    assert made(apart("500ms", "1Gbit/s"))[1] != ()


def test_a_stream_s_buffers_can_hold_a_round_trip_at_the_link_s_rate() -> None:
    made_ports, far = made(apart("50ms", "100Mbit/s"))
    assert set(buffers(made_ports, far)) == {0, 1, 2}
    assert min(buffers(made_ports, far).values()) >= 12.5e6 * 0.1


def test_every_far_address_is_redirected_at_its_sender_s_port_and_only_there() -> None:
    made_ports, far = made(apart())
    filters = [line for line in wires.redirect_lines(made_ports, far) if line.startswith("filter")]
    assert len(filters) == 4
    assert all("redirect dev delay0" in line for line in filters)
    to_the_far_host = [line for line in filters if f"dst {made_ports[2].address}/32" in line]
    assert [line.split()[3] for line in to_the_far_host] == ["p0", "p1"]


def test_a_latency_within_a_shared_port_is_said_to_be_missing() -> None:
    shared = cluster(device(), host(devices=2, count=1), link(latency="3ms"))
    made_ports, none = made(shared)
    assert none == ()
    assert lines(made_ports, none, "")[1:] == [
        "latency of 3 ms between ranks 0, 1: not emulated, since they share a port"
    ]


def test_what_is_in_force_is_said_with_its_level_and_why_it_is_not() -> None:
    made_ports, far = made(apart("20ms"))
    assert lines(made_ports, far, "")[0].startswith("latency: 20 ms world, each way")
    assert lines(made_ports, far, "no tap interfaces") == [
        "latency: this machine's own, not the file's: no tap interfaces"
    ]


def test_more_rate_than_one_relay_carries_is_said() -> None:
    made_ports, far = made(apart("1ms", "2Gbit/s"))
    assert "all at once are slower" in lines(made_ports, far, "")[-1]
    assert "slower" not in lines(*made(plain()), "")[-1]


NAMES = st.text(st.characters(categories=("L", "N", "P")), min_size=1)
ORDERS = st.builds(
    Order,
    st.integers(1, 1 << 22),
    NAMES,
    st.lists(NAMES).map(tuple),
    st.lists(st.builds(Held, NAMES, st.floats(0, 10), st.integers(1, 1 << 30))).map(tuple),
    st.lists(st.builds(Buffers, NAMES, st.integers(1, 1 << 30))).map(tuple),
)


@given(ORDERS)
def test_an_order_comes_to_its_relay_unchanged(order: Order) -> None:
    assert order_from(json.dumps(asdict(order))) == order


@pytest.mark.parametrize("text", ["", "[]", '{"maker": 1}'])
def test_a_damaged_order_is_one_clear_error(text: str) -> None:
    with pytest.raises(SpecError):
        order_from(text)


@contextmanager
def queue(delay_s: float, queue_bytes: int) -> Generator[tuple[Queue, socket.socket]]:
    """A queue on one end of a pair of sockets that keep packets apart, as a tap does."""
    tap, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(tap), closing(other):
        tap.setblocking(False)
        other.settimeout(5.0)
        yield Queue(tap.fileno(), Held("delay0", delay_s, queue_bytes)), other


def test_packets_leave_a_queue_in_order_and_none_before_its_time() -> None:
    sent = [bytes([number]) * 10 for number in range(40)]
    with queue(0.05, 1000) as (waiting, other):
        for packet in sent:
            other.send(packet)
        before_s = time.monotonic()
        waiting.take()
        while (due_s := waiting.give()) is not None:
            assert due_s >= before_s + 0.05
            time.sleep(max(0.0, due_s - time.monotonic()))
        assert [other.recv(99) for _ in sent] == sent
        assert time.monotonic() >= before_s + 0.05
        assert waiting.waiting_bytes == 0


def test_a_full_queue_drops_what_comes_and_keeps_what_waits() -> None:
    with queue(0.0, 35) as (waiting, other):
        for letter in b"abcde":
            other.send(bytes([letter]) * 10)
        waiting.take()
        assert waiting.give() is None
        assert [other.recv(99)[:1] for _ in range(3)] == [b"a", b"b", b"c"]
        other.send(b"f" * 10)
        waiting.take()
        waiting.give()
        assert other.recv(99)[:1] == b"f"  # not d: dropped, and there is room again
