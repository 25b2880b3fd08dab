"""Which congestion control a connection between ranks runs with."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ratrain.runtime.step.network.congestion import LONG_ROUND_TRIP_S, choose_congestion, is_slower

KNOWN = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def connection_with(name: str) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far = server.accept()[0]
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    return near, far


def congestion_of(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


@pytest.mark.parametrize(("before", "after"), [("bbr", "cubic"), ("reno", "reno")])
def test_a_near_connection_leaves_bbr_and_keeps_any_other_choice(before: str, after: str) -> None:
    if not {before, after} <= set(KNOWN.read_text().split()):
        pytest.skip(f"this kernel has no {before} or no {after}")
    near, far = connection_with(before)
    with near, far:
        choose_congestion(near)
        assert congestion_of(near) == after


def test_over_a_long_way_bbr_stays() -> None:
    assert not is_slower("bbr", LONG_ROUND_TRIP_S)
    assert is_slower("bbr", LONG_ROUND_TRIP_S / 2)


def test_a_socket_that_is_no_tcp_connection_is_left_as_it_is() -> None:
    near, far = socket.socketpair()
    with near, far:
        choose_congestion(near)
        near.sendall(b"x")
        assert far.recv(1) == b"x"
