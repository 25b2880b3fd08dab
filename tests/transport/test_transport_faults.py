"""Real processes and real failures: kill -9, SIGSTOP, strangers, NICs that go and come back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fabric_here import why_no_fabric
from far import PART_BYTES
from kinds import options

from ratrain.errors import (
    DeadlineExceeded,
    HandshakeFailed,
    PeerDown,
    ProviderUnavailable,
    SpecError,
    StaleDescriptor,
    TransportError,
)
from ratrain.transport import Config, Descriptor, Engine
from ratrain.transport.providers.folders import sweep
from ratrain.transport.wire.address import Endpoint

SECRET = b"a secret of tests"
FAR = str(Path(__file__).with_name("far.py"))


class Far:
    """A far process, and the descriptor it has offered."""

    def __init__(self, provider: str, job: str, nics: str = "loopback", inside: str = "") -> None:
        wrap = ["ip", "netns", "exec", inside] if inside else []
        self.process = subprocess.Popen(
            [*wrap, sys.executable, FAR, provider, nics, job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout and self.process.stdin
        self.place = Descriptor.from_bytes(self.process.stdout.readline().encode())

    def ask(self, what: str) -> int:
        assert self.process.stdout and self.process.stdin
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def tell(self, what: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def far(provider: str, job: str, nics: str = "loopback", inside: str = "") -> Iterator[Far]:
    other = Far(provider, job, nics, inside)
    try:
        yield other
    finally:
        other.end()


def near(provider: str, **more: Any) -> Engine:
    return Engine(Config(SECRET, "near", **options(provider), **more))


@pytest.mark.slow
def test_four_processes_of_eight_threads_write_to_one_region_and_the_count_is_exact(
    provider: str,
) -> None:
    threads, times = 8, 25
    with ExitStack() as stack:
        engine = stack.enter_context(near(provider))
        target = np.zeros(4 * threads * PART_BYTES, np.uint8)
        place = engine.register(target).descriptor().to_bytes().decode()
        others = [stack.enter_context(far(provider, "crowd")) for _ in range(4)]
        counter, seen = engine.counter(1), [0]
        for index, other in enumerate(others):
            other.tell(f"{place}\n{index * threads} {threads} {times}")
        while seen[-1] < 4 * threads * times:
            seen.append(counter.value)
            assert engine.wait_until(lambda: counter.value != seen[-1], 20)
            seen.append(counter.value)
        for other in others:
            assert other.process.stdout
            assert int(other.process.stdout.readline()) == threads * times
        assert seen == sorted(seen)
        assert counter.value == 4 * threads * times
        assert (target == np.repeat(np.arange(4 * threads) + 1, PART_BYTES)).all()


@pytest.mark.slow
def test_a_receiver_killed_in_mid_transfer_fails_the_write_within_a_second(provider: str) -> None:
    with far(provider, "receive") as other, near(provider) as engine:
        down: list[object] = []
        engine.on_peer_down(lambda _, error: down.append(error))
        src = engine.register(np.ones(256 << 20, np.uint8))
        engine.imm(other.place.address, 9).wait()
        transfers = [engine.write(src, other.place, imm=1) for _ in range(20)]
        engine.wait_until(lambda: transfers[0].bytes_acked > 0, 10)
        other.process.kill()
        killed_s = time.monotonic()
        with pytest.raises(PeerDown) as caught:
            for transfer in transfers:
                transfer.wait(20)
        assert time.monotonic() - killed_s < 1.0
        assert caught.value.bytes_acked <= 256 << 20
        assert all(t.done() for t in transfers)
        assert engine.wait_until(lambda: len(down) == 1, 1.0)


@pytest.mark.slow
def test_a_sender_killed_in_mid_transfer_fails_the_wait_and_counts_no_partial_write(
    provider: str,
) -> None:
    with far(provider, "send") as other, near(provider) as engine:
        target = np.zeros(128 << 20, np.uint8)
        region = engine.register(target)
        counter = engine.counter(1, sources=[other.place.address])
        other.tell(region.descriptor().to_bytes().decode())
        counter.wait(1, 20)
        target[:] = 0  # between two writes: zeros over part of one would look like a partial write
        other.tell("write for ever")
        time.sleep(0.003)
        other.process.kill()
        with pytest.raises(PeerDown):
            while True:
                counter.wait(1, 5)
                assert (target == 7).all()


@pytest.mark.slow
def test_a_peer_killed_between_transfers_or_before_contact_gives_an_error_not_a_hang(
    provider: str,
) -> None:
    with near(provider, connect_timeout_s=0.5) as engine:
        with far(provider, "receive") as other:
            engine.imm(other.place.address, 1).wait()
        src = engine.register(np.ones(100, np.uint8))
        with pytest.raises(PeerDown):
            engine.write(src, other.place, deadline_s=3).wait()
        with far(provider, "receive") as other:
            pass
        began_s = time.monotonic()
        with pytest.raises(PeerDown):
            engine.write(src, other.place, deadline_s=3).wait()
        assert time.monotonic() - began_s < 2.0


@pytest.mark.slow
def test_a_stopped_peer_is_waited_for_below_the_dead_time_and_fails_above_it(
    provider: str,
) -> None:
    times: dict[str, Any] = {"ping_s": 0.2, "suspect_s": 0.5, "dead_s": 1.5}
    with far(provider, "receive") as other, near(provider, **times) as engine:
        src = engine.register(np.ones(64 << 20, np.uint8))
        engine.imm(other.place.address, 9).wait()
        os.kill(other.process.pid, signal.SIGSTOP)
        transfer = engine.write(src, other.place, imm=1)
        engine.wait_until(lambda: False, 0.9)
        assert engine.stats()["peers"][str(other.place.address)]["state"] == "SUSPECT"
        os.kill(other.process.pid, signal.SIGCONT)
        transfer.wait(5)
        os.kill(other.process.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        with pytest.raises(PeerDown, match="silent"):
            engine.write(src, other.place, imm=1).wait(10)
        assert time.monotonic() - began_s < 2.5


@pytest.mark.slow
def test_a_slow_reader_meets_the_deadline_and_no_memory_piles_up() -> None:
    with far("sock", "receive") as other, near("sock") as engine:
        src = engine.register(np.ones(256 << 20, np.uint8))
        engine.imm(other.place.address, 9).wait()
        os.kill(other.process.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            engine.write(src, other.place, deadline_s=0.5).wait()
        assert time.monotonic() - began_s < 0.8
        os.kill(other.process.pid, signal.SIGCONT)
        engine.imm(other.place.address, 9).wait(5)


def test_an_old_descriptor_of_a_restarted_peer_is_stale() -> None:
    with near("sock") as engine, Engine(Config(SECRET, "new", providers=("sock",))) as new:
        target = new.register(bytearray(10))
        old = replace(new.address, incarnation=12345)
        with pytest.raises(StaleDescriptor):
            engine.write(
                engine.register(bytes(10)), replace(target.descriptor(), address=old)
            ).wait(5)


def test_another_secret_or_version_is_refused_and_named() -> None:
    other = Engine(Config(b"a different secret", "b", providers=("sock",)))
    with near("sock") as engine, other:
        with pytest.raises(PeerDown, match="secret"):
            engine.imm(other.address, 1).wait(5)
        assert not other.core.peers
    with near("sock") as engine, socket.create_server(("127.0.0.1", 0)) as server:

        def future() -> None:
            sock, _ = server.accept()
            sock.sendall(b"RATNET\x00\x09" + bytes(32))
            time.sleep(0.2)
            sock.close()

        threading.Thread(target=future, daemon=True).start()
        end = Endpoint("sock", "lo", *server.getsockname())
        with pytest.raises(PeerDown, match="version 1 here, 9 there"):
            engine.imm(replace(engine.address, incarnation=5, endpoints=(end,)), 1).wait(5)
    assert issubclass(HandshakeFailed, TransportError)


def test_a_stranger_who_says_nothing_or_nonsense_holds_up_nobody() -> None:
    with near("sock") as engine, Engine(Config(SECRET, "b", providers=("sock",))) as b:
        place = (b.address.endpoints[0].host, b.address.endpoints[0].port)
        quiet = [socket.create_connection(place) for _ in range(150)]
        loud = socket.create_connection(place)
        loud.sendall(os.urandom(100_000))
        engine.imm(b.address, 1).wait(5)
        b.counter(1).wait(1)
        assert len(b.core.peers) == 1
        for sock in [*quiet, loud]:
            sock.close()


def test_a_provider_that_no_side_shares_is_an_error_and_never_another_provider() -> None:
    with (
        near("shm") as engine,
        Engine(Config(SECRET, "b", providers=("sock",))) as b,
        pytest.raises(PeerDown, match="no common provider"),
    ):
        engine.imm(b.address, 1).wait(5)


def test_without_leave_to_read_the_senders_memory_shm_sends_through_the_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ratrain.transport.providers.handshakes.can_read", lambda _: False)
    with near("shm") as engine, Engine(Config(SECRET, "b", providers=("shm",))) as b:
        source = np.random.default_rng(1).integers(0, 256, 5 << 20, np.uint8)
        target = np.zeros_like(source)
        engine.write(engine.register(source), b.register(target).descriptor()).wait(5)
        assert (source == target).all()
        links = engine.stats()["peers"][str(b.address)]["links"]
        assert not links[0]["single_copy"]


def test_without_its_compiled_part_ofi_is_refused_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ratrain.compiled.library", lambda *_: None)
    with pytest.raises(ProviderUnavailable, match="compiled part") as caught:
        near("ofi")
    assert "libfabric-dev" in str(caught.value)


def test_a_congestion_control_or_fabric_that_does_not_exist_is_refused_at_the_start() -> None:
    with pytest.raises(ProviderUnavailable, match="nosuch"):
        near("sock", congestion="nosuch")
    if not why_no_fabric():
        with pytest.raises(ProviderUnavailable, match="nosuch"):
            near("ofi", fabric="nosuch")


def test_an_ipv6_address_serves_as_nic_and_one_of_another_host_is_refused() -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    config = Config(SECRET, "b", nics=("::1",), providers=("sock",))
    with near("sock", nics=("::1",)) as engine, Engine(config) as b:
        source, target = np.full(3 << 20, 9, np.uint8), np.zeros(3 << 20, np.uint8)
        engine.write(engine.register(source), b.register(target).descriptor(), imm=1).wait(10)
        assert b.counter(1).value == 1
        assert (target == 9).all()
    for wrong in ("2001:db8::1", "::zz"):
        with pytest.raises(SpecError, match="not an IPv6 address of this host"):
            near("sock", nics=(wrong,))


def test_the_socket_folder_of_a_killed_engine_is_swept_and_a_live_one_is_not() -> None:
    with far("shm", "receive") as other, near("shm") as engine:
        paths = [Path(d.endpoints[0].host).parent for d in (other.place.address, engine.address)]
        other.process.kill()
        other.process.wait()
        assert all(p.exists() for p in paths)
        sweep(older_than_s=0.0)
        assert [p.exists() for p in paths] == [False, True]


@pytest.mark.slow
def test_half_a_minute_of_mixed_traffic_with_kills_leaves_no_wrong_byte_and_no_leak() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "transport" / "soak.py"
    command = [sys.executable, str(script), "30", "8"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=110)
    totals = json.loads(result.stdout)
    assert totals["kills"] >= 10
    assert totals["writes"] > 1000
    assert totals["checked"] > 1000
    assert totals["wrong"] == 0
    assert totals["hung"] == 0
    assert totals["worst_growth"]["threads"] <= 2
    assert totals["worst_growth"]["fds"] <= 8
    assert totals["worst_growth"]["rss_kib"] < 20_000


# --- network namespaces ---------------------------------------------------------------------

needs_root = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]


def sh(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


@contextmanager
def wires(*rates_mbit: int) -> Iterator[tuple[str, list[str]]]:
    """A namespace behind one veth pair per rate; yields its name and its addresses there."""
    space = f"ratnet{os.getpid()}"
    sh(f"ip netns add {space}")
    try:
        hosts: list[str] = []
        for i, rate in enumerate(rates_mbit):
            sh(f"ip link add rtn{i} type veth peer name far{i} netns {space}")
            sh(f"ip addr add 10.91.{i}.1/24 dev rtn{i}")
            sh(f"ip -n {space} addr add 10.91.{i}.2/24 dev far{i}")
            sh(f"ip link set rtn{i} up")
            sh(f"ip -n {space} link set far{i} up")
            burst = 256 if rate > 500 else 64
            shape = f"root tbf rate {rate}mbit burst {burst}kb latency 50ms"
            sh(f"tc qdisc replace dev rtn{i} {shape}")
            sh(f"ip netns exec {space} tc qdisc replace dev far{i} {shape}")
            hosts.append(f"10.91.{i}.2")
        sh(f"ip -n {space} link set lo up")
        yield space, hosts
    finally:
        sh(f"ip netns del {space}")
        for i in range(len(rates_mbit)):
            subprocess.run(["ip", "link", "del", f"rtn{i}"], capture_output=True, check=False)


def carried(engine: Engine) -> list[int]:
    """The bytes that each NIC of the one peer has brought, in the order of their names."""
    (peer,) = engine.stats()["peers"].values()
    return [k["acked_bytes"] for k in sorted(peer["links"], key=lambda k: k["nic"])]


class TestNamespaces:
    pytestmark = needs_root

    def rate_mbit(self, rates: tuple[int, ...], size: int, nics: int) -> float:
        """Mbit/s of one large write over the first `nics` wires."""
        return self.measure(rates, size, nics)[0]

    def measure(self, rates: tuple[int, ...], size: int, nics: int) -> tuple[float, list[float]]:
        """Mbit/s of one large write over the first `nics` wires, and each wire's share of it."""
        with wires(*rates) as (space, hosts):
            names = ",".join(hosts[:nics])
            ours = tuple(f"rtn{i}" for i in range(nics))
            with far("sock", "receive", names, space) as other, near("sock", nics=ours) as engine:
                src = engine.register(np.ones(size, np.uint8))
                engine.connect(other.place.address)
                engine.wait_until(
                    lambda: len(engine.core.peers[other.place.address.incarnation].links) == nics,
                    5,
                )
                engine.write(src[: 4 << 20], other.place).wait()
                before, began_s = carried(engine), time.monotonic()
                engine.write(src, other.place).wait()
                took_s = time.monotonic() - began_s
                parts = [now - then for now, then in zip(carried(engine), before, strict=True)]
                return size * 8e-6 / took_s, [part / sum(parts) for part in parts]

    @pytest.mark.slow
    def test_two_equal_nics_carry_about_a_half_each(self) -> None:
        _, shares = self.measure((400, 400), 64 << 20, 2)
        assert min(shares) > 0.35  # what that gives: benchmarks/transport/nics.py

    @pytest.mark.slow
    def test_a_slow_second_nic_adds_its_rate_instead_of_halving_the_first(self) -> None:
        _, (fast, slow) = self.measure((400, 100), 64 << 20, 2)
        assert 0.1 < slow < 0.35  # its rate's share is 0.2; an even split waits for it
        assert fast > 0.65

    @pytest.mark.slow
    def test_a_nic_that_goes_down_loses_nothing_and_is_used_again_when_back(self) -> None:
        with (
            wires(400, 400) as (space, hosts),
            far("sock", "receive", ",".join(hosts), space) as other,
            near(
                "sock", nics=("rtn0", "rtn1"), ping_s=0.2, suspect_s=0.5, nic_dead_s=0.6
            ) as engine,
        ):
            size = 128 << 20
            src = engine.register(np.ones(size, np.uint8))
            engine.imm(other.place.address, 9).wait()
            peer = engine.core.peers[other.place.address.incarnation]
            assert engine.wait_until(lambda: len(peer.links) == 2, 5)
            transfer = engine.write(src, other.place, imm=1)
            engine.wait_until(lambda: transfer.bytes_acked > size // 8, 10)
            sh(f"ip -n {space} link set far1 down")
            transfer.wait(20)
            assert len(peer.links) == 1
            assert peer.outbox.resent_pieces > 0
            assert other.ask("count") == 1
            assert other.ask(f"sum {size}") == size
            sh(f"ip -n {space} link set far1 up")
            assert engine.wait_until(lambda: len(peer.links) == 2, 10)
            back = next(k for k in peer.links if k.nic == "rtn1")
            engine.write(src, other.place).wait(20)
            assert back.delivered_bytes > size // 4

    @pytest.mark.slow
    def test_all_links_down_is_a_peer_down_within_the_dead_time(self) -> None:
        with (
            wires(400) as (space, hosts),
            far("sock", "receive", hosts[0], space) as other,
            near("sock", nics=("rtn0",), ping_s=0.2, suspect_s=0.5, dead_s=1.5) as engine,
        ):
            src = engine.register(np.ones(128 << 20, np.uint8))
            engine.imm(other.place.address, 9).wait()
            transfer = engine.write(src, other.place, imm=1)
            engine.wait_until(lambda: transfer.bytes_acked > 0, 5)
            sh(f"ip -n {space} link set far0 down")
            began_s = time.monotonic()
            with pytest.raises(PeerDown, match="silent"):
                transfer.wait(20)
            assert time.monotonic() - began_s < 2.5
            assert other.ask("count") == 0

    @pytest.mark.slow
    def test_a_rate_that_changes_under_way_is_followed(self) -> None:
        with (
            wires(400, 100) as (space, hosts),
            far("sock", "receive", ",".join(hosts), space) as other,
            near("sock", nics=("rtn0", "rtn1")) as engine,
        ):
            src = engine.register(np.ones(128 << 20, np.uint8))
            engine.imm(other.place.address, 9).wait()
            transfer = engine.write(src, other.place, imm=1)
            engine.wait_until(lambda: transfer.bytes_acked > 32 << 20, 10)
            sh("tc qdisc replace dev rtn0 root tbf rate 100mbit burst 64kb latency 50ms")
            sh("tc qdisc replace dev rtn1 root tbf rate 400mbit burst 64kb latency 50ms")
            before = carried(engine)
            transfer.wait(20)
            first, second = (n - m for n, m in zip(carried(engine), before, strict=True))
            assert second > 1.5 * first
