"""Frames over several networks at once: whole, whatever each of them brings, and who is gone."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Generator
from contextlib import suppress

import pytest
from test_connection import beside, noise, tcp_pair

from ratrain.errors import PeerDown, TransportError
from ratrain.runtime.step.network.connection import Connection, Landing, Leaving, move
from ratrain.runtime.step.network.rails import RAILED_BYTES


class Slow:
    """A way between two sockets that brings so many bytes a second, and holds few of them."""

    def __init__(self, rate: float) -> None:
        (self.near, inner), (outer, self.far) = tcp_pair(), tcp_pair()
        for sock in (self.near, inner, outer, self.far):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.brought = 0
        self._rate, self._ends = rate, (inner, outer)
        beside(lambda: self._bring(inner, outer))
        beside(lambda: self._bring(outer, inner))

    def _bring(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while block := source.recv(1 << 16):
                sink.sendall(block)
                self.brought += len(block)
                time.sleep(len(block) / self._rate)
        self.cut()

    def cut(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


Ends = tuple[Connection, Connection, tuple[Slow, ...]]


@pytest.fixture
def unequal() -> Generator[Ends]:
    near, far = tcp_pair()
    ways = tuple(Slow(rate) for rate in (200e6, 50e6))
    one = Connection(near, 0, 1, 5.0, rails=[way.near for way in ways])
    other = Connection(far, 1, 0, 5.0, rails=[way.far for way in ways])
    yield one, other, ways
    one.close()
    other.close()


@pytest.mark.parametrize("seed", range(4))
def test_frames_of_any_size_arrive_in_rooms_of_any_size_over_unequal_networks(
    unequal: Ends, seed: int
) -> None:
    drawn = random.Random(seed)
    sizes = [drawn.choice([0, 100, RAILED_BYTES - 1, RAILED_BYTES, 900_001]) for _ in range(5)]
    bodies = [noise(size, seed) for size in sizes]
    cuts = [sorted(drawn.sample(range(1, size), 6)) if size else [] for size in sizes]
    sending = beside(lambda: [unequal[0].send(body) for body in bodies])
    for body, at in zip(bodies, cuts, strict=True):
        got = bytearray()
        for begin, end in zip([0, *at], [*at, len(body)], strict=True):
            room = bytearray(end - begin)
            halves = memoryview(room)[: len(room) // 2], memoryview(room)[len(room) // 2 :]
            move([], [Landing(unequal[1], *halves, frame_bytes=len(body))])
            got += room
        assert got == body
    sending.join()


def test_both_ways_at_once_each_network_brings_what_it_can(unequal: Ends) -> None:
    one, other, ways = unequal
    bodies, rooms = [noise(6 << 20, 1), noise(6 << 20, 2)], [bytearray(6 << 20) for _ in range(2)]

    def exchange(end: Connection, body: bytes, room: bytearray) -> None:
        move([Leaving(end, body)], [Landing(end, memoryview(room))])

    there = beside(lambda: exchange(one, bodies[0], rooms[1]))
    exchange(other, bodies[1], rooms[0])
    there.join()
    assert rooms == bodies
    assert all(way.brought > 1 << 20 for way in ways)
    assert ways[0].brought > ways[1].brought


def test_a_body_that_is_made_while_it_leaves_may_use_the_same_memory_again(unequal: Ends) -> None:
    pieces = [noise(300_000, each) for each in range(5)]

    def made() -> Generator[memoryview]:
        room = bytearray(300_000)
        for piece in pieces:
            room[:] = piece
            yield memoryview(room)

    sending = beside(lambda: move([Leaving.made(unequal[0], 1_500_000, made())], []))
    room = bytearray(1_500_000)
    unequal[1].receive(memoryview(room))
    sending.join()
    assert room == b"".join(pieces)


def test_a_network_that_is_cut_loses_the_peer_at_once(unequal: Ends) -> None:
    one, other, ways = unequal
    threading.Timer(0.05, ways[1].cut).start()

    def send() -> None:
        with suppress(PeerDown):
            one.send(noise(40 << 20))
        one.hang_up()

    beside(send)
    began_s = time.monotonic()
    with pytest.raises(PeerDown, match="rank 1 lost its connection to rank 0"):
        other.receive(memoryview(bytearray(40 << 20)))
    assert time.monotonic() - began_s < 4


@pytest.mark.parametrize("at", [RAILED_BYTES, 1 << 63])
def test_a_part_outside_of_its_frame_is_refused(at: int) -> None:
    near, far = tcp_pair()
    rail, stranger = tcp_pair()
    with far, stranger:
        end = Connection(near, 0, 1, 1.0, rails=[rail])
        far.sendall(struct.pack("!3sBQ", b"RAT", 255, RAILED_BYTES))
        stranger.sendall(struct.pack("!IIQ", 1, 1, at) + b"x")
        with pytest.raises(TransportError, match="rank 1 sent rank 0 a part of a frame that lies"):
            end.receive(memoryview(bytearray(RAILED_BYTES)))
        end.close()


def test_who_has_no_further_networks_takes_no_parts() -> None:
    near, far = tcp_pair()
    with far:
        end = Connection(near, 0, 1, 1.0)
        far.sendall(struct.pack("!3sBQ", b"RAT", 255, RAILED_BYTES))
        with pytest.raises(TransportError, match="not a frame"):
            end.receive(memoryview(bytearray(RAILED_BYTES)))
        end.close()
