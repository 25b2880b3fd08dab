"""Frames between two ranks: exact, both ways at once, checked before they are taken."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Generator
from itertools import product

import pytest

from ratrain.errors import DeadlineExceeded, PeerDown, RatrainError, TransportError
from ratrain.runtime.rank.joining.handshake import Gate
from ratrain.runtime.step.network.broadcast import Broadcast
from ratrain.runtime.step.network.connection import Connection, Landing, Leaving, move
from ratrain.transport import Tls
from ratrain.transport.wire.tls import Guard

Ends = tuple[Connection, Connection]
BIG = 8 << 20
"""More than the operating system takes before the other side reads."""


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


def sealed_pair() -> tuple[socket.socket, socket.socket]:
    """The same under TLS, both ends of one process."""
    (near, far), gate, deadline_s = tcp_pair(), Gate(bytes(32), Guard(Tls())), time.monotonic() + 5
    heard: list[socket.socket] = []
    listens = beside(lambda: heard.append(gate.welcome(far, lambda _: b"", deadline_s)[0]))
    made = gate.greet(near, b"", deadline_s)
    listens.join()
    far.close()
    return made, heard[0]


@pytest.fixture(
    params=product([tcp_pair, sealed_pair], [0, 1, 3]),
    ids=lambda given: f"{given[0].__name__}, {given[1]} rails",
)
def ends(request: pytest.FixtureRequest) -> Generator[Ends]:
    pair, count = request.param
    near, far = pair()
    rails = [pair() for _ in range(count)]
    both = (
        Connection(near, 0, 1, 5.0, rails=[rail[0] for rail in rails]),
        Connection(far, 1, 0, 5.0, rails=[rail[1] for rail in rails]),
    )
    yield both
    for end in both:
        end.close()


@pytest.fixture
def stranger() -> Generator[tuple[Connection, socket.socket]]:
    """A rank's end, and what holds the other and says what it likes."""
    near, far = tcp_pair()
    with far:
        end = Connection(near, 0, 1, 1.0)
        yield end, far
        end.close()


def beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def test_frames_arrive_whole_and_in_order_whatever_their_size(ends: Ends) -> None:
    sizes = [0, 1, 11, 12, 13, 4096, (1 << 17) - 1, 1 << 17, (1 << 17) + 1, 3 << 20]
    bodies = [noise(size, size) for size in (*sizes, *reversed(sizes))]
    sending = beside(lambda: [ends[0].send(body) for body in bodies])
    for body in bodies:
        room = bytearray(len(body))
        ends[1].receive(memoryview(room))
        assert room == body
    sending.join()


def test_a_frame_can_be_taken_in_parts_behind_its_beginning(ends: Ends) -> None:
    body = noise(1 << 20)
    sending = beside(lambda: ends[0].send(body))
    assert ends[1].await_frame() == ends[1].await_frame() == len(body)
    got = bytearray()
    for part in (1, 100_000, (1 << 20) - 100_001):
        room = bytearray(part)
        move([], [Landing(ends[1], memoryview(room), frame_bytes=len(body))])
        got += room
    sending.join()
    assert got == body


def test_both_ways_at_once_nobody_waits_for_the_other(ends: Ends) -> None:
    there, back = noise(BIG, 1), noise(BIG, 2)
    rooms = bytearray(BIG), bytearray(BIG)

    def far() -> None:
        move([Leaving(ends[1], back)], [Landing(ends[1], memoryview(rooms[1]))])

    other = beside(far)
    move([Leaving(ends[0], there)], [Landing(ends[0], memoryview(rooms[0]))])
    other.join()
    assert (rooms[0], rooms[1]) == (back, there)


def test_bytes_that_have_been_sent_enough_may_be_overwritten(ends: Ends) -> None:
    body = bytearray(noise(BIG))
    expected, room = bytes(body), bytearray(BIG)
    receiving = beside(lambda: ends[1].receive(memoryview(room)))
    leaving = Leaving(ends[0], memoryview(body))
    for end in range(1 << 20, BIG + 1, 1 << 20):
        move([leaving], [], enough_sent=end)
        body[end - (1 << 20) : end] = bytes(1 << 20)
    receiving.join()
    assert room == expected


# ---- what is not as expected ----------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, 7, 9, 1 << 60])
def test_a_frame_of_another_length_is_refused_before_a_byte_of_it_is_taken(
    sent: int, stranger: tuple[Connection, socket.socket]
) -> None:
    end, far = stranger
    far.sendall(struct.pack("!4sQ", b"RAT\0", sent) + b"x" * 64)
    room = bytearray(8)
    with pytest.raises(TransportError, match=f"rank 1 sent rank 0 {sent:,} bytes where 8"):
        end.receive(memoryview(room))
    assert room == bytes(8)


def test_words_longer_than_allowed_are_refused_before_room_is_made(
    stranger: tuple[Connection, socket.socket],
) -> None:
    end, far = stranger
    far.sendall(struct.pack("!4sQ", b"RAT\0", 1 << 62))
    with pytest.raises(TransportError, match="where at most 1,000 were expected"):
        end.receive_bytes(1000)


@pytest.mark.parametrize("message", [b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04\x95" + bytes(60)])
def test_what_is_no_frame_is_refused(
    message: bytes, stranger: tuple[Connection, socket.socket]
) -> None:
    end, far = stranger
    far.sendall(message)
    with pytest.raises(TransportError, match="rank 1 sent rank 0 something that is not a frame"):
        end.receive(memoryview(bytearray(8)))


def test_a_damaged_table_of_words_is_refused(stranger: tuple[Connection, socket.socket]) -> None:
    end, far = stranger
    broadcast = Broadcast(1, 3, {0: end})
    word = struct.pack("!II", 4, 0)
    tables = (b"", struct.pack("!I", 1 << 31), word * 2, word * 4, word * 3 + b"x")
    for table in (*map(zlib.compress, tables), zlib.compress(word * 3)[:-3], word * 3, b""):
        far.sendall(struct.pack("!4sQ", b"RAT\0", len(table)) + table)
        with pytest.raises(TransportError, match="a table that is damaged"):
            broadcast.exchange(b"")


@pytest.mark.parametrize(
    "part", [b"", b"RAT\x00\0\0", struct.pack("!4sQ", b"RAT\0", 1000) + bytes(9)]
)
def test_a_peer_that_falls_silent_is_named_in_time(
    part: bytes, stranger: tuple[Connection, socket.socket]
) -> None:
    end, far = stranger
    end.patience_s = 0.25
    far.sendall(part)
    began_s = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"rank 0 received nothing from rank 1 for 0.25 s"):
        end.receive(memoryview(bytearray(1000)))
    assert 0.2 < time.monotonic() - began_s < 3


def test_a_peer_that_takes_nothing_is_named_in_time(
    stranger: tuple[Connection, socket.socket],
) -> None:
    stranger[0].patience_s = 0.25
    with pytest.raises(DeadlineExceeded, match=r"rank 1 accepted no data from rank 0 for 0.25 s"):
        stranger[0].send(bytes(4 * BIG))


@pytest.mark.parametrize("sends", [True, False])
def test_a_peer_that_goes_is_named_at_once(
    sends: bool, stranger: tuple[Connection, socket.socket]
) -> None:
    end, far = stranger
    end.patience_s = 60
    beside(lambda: (time.sleep(0.2), far.close()))
    began_s = time.monotonic()
    with pytest.raises(PeerDown, match="rank 0 lost its connection to rank 1"):
        if sends:
            end.send(bytes(4 * BIG))
        else:
            end.receive(memoryview(bytearray(10)))
    assert time.monotonic() - began_s < 5


def test_no_noise_is_taken_for_a_frame() -> None:
    chance = random.Random(7)
    for _ in range(200):
        near, far = tcp_pair()
        end = Connection(near, 0, 1, 1.0)
        with far:
            far.sendall(chance.randbytes(chance.randrange(12, 80)))
            with pytest.raises(RatrainError):
                end.receive_bytes(1 << 20)
        end.close()
