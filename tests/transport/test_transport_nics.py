"""Which interfaces serve, by name or all of them, over IPv4 and IPv6."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_transport_faults import far, near, needs_root, sh

from ratrain.errors import PeerDown
from ratrain.transport import Config, Engine
from ratrain.transport.wire.nics import Nic, choose, discover, pair, place

SECRET = b"a secret of tests"
HOSTS = st.sampled_from(
    ["10.0.0.1", "10.0.0.2", "10.0.1.1", "192.168.0.9", "fd00::1", "fd00:1::2", "fe80::7%eth3"]
)


@given(st.lists(HOSTS, min_size=1, max_size=5), st.lists(HOSTS, min_size=1, max_size=5))
def test_pairs_are_of_one_ip_version_and_use_every_nic_that_has_a_partner(
    ours: list[str], theirs: list[str]
) -> None:
    local = [Nic(f"n{i}", host, 64 if ":" in host else 24) for i, host in enumerate(ours)]
    pairs = pair(local, theirs)
    assert all((":" in nic.host) == (":" in theirs[index]) for nic, index in pairs)
    versions = {":" in h for h in ours} & {":" in h for h in theirs}
    assert {n.name for n, _ in pairs} == {n.name for n in local if (":" in n.host) in versions}
    assert {i for _, i in pairs} == {i for i, h in enumerate(theirs) if (":" in h) in versions}
    for nic, index in pairs:
        if not nic.reaches(theirs[index]):
            lonely = not any(nic.reaches(h) for h in theirs)
            assert lonely or not any(n.reaches(theirs[index]) for n in local)


def test_an_address_of_one_wire_is_sought_on_our_end_of_it() -> None:
    lo = socket.if_nametoindex("lo")
    for nic in (Nic("lo", "fd00::1", 64), Nic("x", "fe80::1%lo", 64)):
        assert place("fe80::7%nosuch", 5, nic) == ("fe80::7", 5, 0, lo)
    assert place("fd00::7", 5, Nic("eth1", "fd00::1", 64)) == ("fd00::7", 5)
    assert place("10.0.0.1", 5, Nic("eth1", "10.0.0.2", 24)) == ("10.0.0.1", 5)


def test_an_interface_with_ipv4_is_known_by_that_alone() -> None:
    known = discover()
    assert len({n.name for n in known}) == len(known)
    assert Nic("lo", "127.0.0.1", 8) in known
    assert choose("loopback") == [Nic("lo", "127.0.0.1", 8)]


def test_engines_of_two_ip_versions_are_told_that_they_cannot_meet() -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    config = Config(SECRET, "b", nics=("::1",), providers=("sock",))
    told = r"no common IP version: 127\.0\.0\.1 here, ::1 there"
    with near("sock") as a, Engine(config) as b, pytest.raises(PeerDown, match=told):
        a.imm(b.address, 1).wait(4)


@contextmanager
def wire(ours: list[str], theirs: list[str]) -> Iterator[str]:
    """A namespace behind a veth pair, rtn6 here and far6 there, with these addresses alone."""
    space = f"ratnet6{os.getpid()}"
    sh(f"ip netns add {space}")
    try:
        sh(f"ip link add rtn6 type veth peer name far6 netns {space}")
        sh("ip link set rtn6 addrgenmode none")
        sh(f"ip -n {space} link set far6 addrgenmode none")
        for address in ours:
            sh(f"ip addr add {address} dev rtn6" + " nodad" * (":" in address))
        for address in theirs:
            sh(f"ip -n {space} addr add {address} dev far6" + " nodad" * (":" in address))
        sh(f"ip -n {space} link set lo up")
        sh("ip link set rtn6 up")
        sh(f"ip -n {space} link set far6 up")
        yield space
    finally:
        sh(f"ip netns del {space}")
        subprocess.run(["ip", "link", "del", "rtn6"], capture_output=True, check=False)


class TestInterfaceWithoutIPv4:
    pytestmark = needs_root

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["sock", "tls"])
    @pytest.mark.parametrize("theirs", ["far6", "all"])
    @pytest.mark.parametrize(
        ("here", "there", "host"),
        [
            (["fe80::1/64", "fd00:6::1/64"], ["fd00:6::2/64", "fe80::2/64"], "fd00:6::2"),
            (["fe80::1/64"], ["fe80::2/64"], "fe80::2%far6"),
        ],
    )
    def test_its_ipv6_address_serves_by_name_and_among_all(
        self, kind: str, theirs: str, here: list[str], there: list[str], host: str
    ) -> None:
        with (
            wire(here, there) as space,
            far(kind, "receive", theirs, space) as other,
            near(kind, nics=("rtn6",)) as engine,
        ):
            assert [e.host for e in other.place.address.endpoints] == [host]
            size = 9 << 20
            src = engine.register(np.ones(size, np.uint8))
            engine.write(src, other.place, imm=1).wait(10)
            assert other.ask("count") == 1
            assert other.ask(f"sum {size}") == size
            link = engine.stats()["peers"][str(other.place.address)]["links"][0]
            assert (link["nic"], link["remote_nic"]) == ("rtn6", "far6")

    def test_all_leaves_an_address_of_one_wire_out_where_there_is_another(self) -> None:
        with wire(["fe80::1/64"], []):
            assert Nic("rtn6", "fe80::1%rtn6", 64) in discover()
            assert "rtn6" not in [n.name for n in choose("all")]
            assert choose(("rtn6",)) == choose(("fe80::1%rtn6",))
        with wire(["10.91.6.1/24", "fd00:6::1/64"], []):
            assert choose(("rtn6",)) == [Nic("rtn6", "10.91.6.1", 24)]
        with wire(["fd00:6::1/64"], []):
            assert Nic("rtn6", "fd00:6::1", 64) in choose("all")

    def test_a_namespace_with_loopback_alone_still_serves_itself(self) -> None:
        code = "from ratrain.transport.wire.nics import choose; print(choose('all'))"
        with wire([], []) as space:
            command = ["ip", "netns", "exec", space, sys.executable, "-c", code]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "127.0.0.1" in told
