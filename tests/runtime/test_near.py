"""Ranks of one machine read each other's memory: whole frames, in order, and never what is no
longer there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_one_process import close_all, introduced, networks, on_all, replicas

from ratrain.errors import PeerDown
from ratrain.program.kind import Lane
from ratrain.runtime.step.network import connection
from ratrain.runtime.step.network.connection import Connection, Landing, Leaving, move
from ratrain.runtime.step.network.links import Routes
from ratrain.runtime.step.network.near import MOST_ROWS, NEAR_BYTES, Introduction, Near

PATIENCE_S = 20.0
Ends = tuple[Connection, Connection]


def pair(*, readable: bool = True) -> Ends:
    sockets = socket.socketpair()
    if readable:
        agreed = introduced(sockets)
    else:
        first, second = (Introduction(end, readable=False) for end in sockets)
        first.hear()
        second.hear()
        agreed = first.agree(), second.agree()
    return (
        Connection(sockets[0], 0, 1, PATIENCE_S, agreed[0]),
        Connection(sockets[1], 1, 0, PATIENCE_S, agreed[1]),
    )


@pytest.fixture
def ends() -> Generator[Ends]:
    both = pair()
    yield both
    for end in both:
        end.close()


def at_once(*work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(each) for each in work]:
            done.result(timeout=60)


def noise(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, size, np.uint8)


sizes = st.one_of(
    st.integers(0, 4 * NEAR_BYTES), st.sampled_from([NEAR_BYTES - 1, NEAR_BYTES, NEAR_BYTES + 1])
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    frames=st.lists(st.tuples(sizes, st.integers(1, 70), st.integers(1, 5)), min_size=1, max_size=6)
)
def test_frames_of_any_size_in_any_pieces_arrive_whole_and_in_order_both_ways(
    ends: Ends, frames: list[tuple[int, int, int]]
) -> None:
    def side(end: Connection, seed: int) -> None:
        for number, (size, places, landings) in enumerate(frames):
            out, into = noise(size, seed + number), np.zeros(size, np.uint8)
            bodies = [part.data for part in np.array_split(out, places)]
            leaving = Leaving(end, *bodies)
            rooms = [part.data for part in np.array_split(into, min(landings, max(1, size)))]
            for room in rooms:
                move([leaving], [Landing(end, room, frame_bytes=size)], enough_sent=0)
            move([leaving], [])
            out[:] = 0  # whoever has moved it may use its memory again
            assert (into == noise(size, 100 - seed + number)).all()

    at_once(lambda: side(ends[0], 0), lambda: side(ends[1], 100))


def test_a_large_frame_is_read_in_place_and_a_small_one_or_one_in_too_many_places_is_sent(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, read = Near.fetch, list[int]()
    monkeypatch.setattr(
        Near, "fetch", lambda near, room, rows: read.append(len(room)) or fetch(near, room, rows)
    )
    for size, places, is_read in (
        (NEAR_BYTES, 1, True),
        (NEAR_BYTES - 1, 1, False),
        (1 << 20, MOST_ROWS + 1, False),
        (1 << 20, MOST_ROWS, True),
    ):
        before = ends[0].sent_bytes
        read.clear()
        parts = [part.data for part in np.array_split(noise(size, 1), places)]
        room = np.zeros(size, np.uint8)
        at_once(
            lambda parts=parts: move([Leaving(ends[0], *parts)], []),
            lambda room=room: ends[1].receive(room.data),
        )
        assert (read == [size]) == is_read
        assert ends[0].sent_bytes - before > size, "both count as sent"
        assert (room == noise(size, 1)).all()


def test_memory_that_may_not_be_read_goes_through_the_socket() -> None:
    near, far = pair(readable=False)
    body, room = noise(1 << 20, 3), np.zeros(1 << 20, np.uint8)
    at_once(lambda: near.send(body.data), lambda: far.receive(room.data))
    assert (room == body).all()
    near.close()
    far.close()


@pytest.mark.parametrize("hosts", [(0, 0), (0, 0, 0), (0, 0, 0, 0)])
def test_sums_and_gathers_are_the_same_bits_as_over_sockets(
    hosts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "NEAR_BYTES", 64)
    count = len(hosts)
    everybody = tuple(range(count))
    gradients = torch.randn(count, count * 4096)
    found: list[list[torch.Tensor]] = []
    for near in (False, True):
        crowd = networks(replicas(count), Routes((), (everybody,)), hosts, near=near)

        def step(rank: int, network: object) -> torch.Tensor:
            flat, whole = gradients[rank].clone(), torch.zeros(count * 4096)
            own = whole.view(count, -1)[rank]
            network.reduce(flat, own, everybody)  # type: ignore[attr-defined]
            flat.zero_()
            network.gather(Lane.GATHER, whole, everybody)  # type: ignore[attr-defined]
            return whole

        found.append(on_all(crowd, step))
        close_all(crowd)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert torch.allclose(found[0][0], gradients.sum(0), atol=1e-5)


ENDS = """
import os, socket, sys
import numpy as np
from ratrain.runtime.step.network.connection import Connection, Leaving, move
from ratrain.runtime.step.network.near import Introduction
sock = socket.socket(fileno=int(sys.argv[1]))
introduction = Introduction(sock, readable=True)
introduction.hear()
end = Connection(sock, 1, 0, 60.0, introduction.agree())
print("ready", end.near.reads, end.near.is_read, flush=True)
if sys.argv[2] == "lends":
    move([Leaving(end, np.ones(1 << 20, np.uint8).data)], [])
else:
    end.await_frame()
    sys.stdin.read()
"""


@pytest.fixture
def other_process() -> Generator[Callable[[str], tuple[Connection, subprocess.Popen[str]]]]:
    """A process at the other end, which lends a frame, or hears of one and never reads it."""
    made: list[subprocess.Popen[str]] = []

    def begin(does: str) -> tuple[Connection, subprocess.Popen[str]]:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", ENDS, str(theirs.fileno()), does]
        process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        made.append(process)
        theirs.close()
        introduction = Introduction(ours, readable=True)
        introduction.hear()
        end = Connection(ours, 0, 1, 60.0, introduction.agree())
        assert process.stdout is not None
        assert process.stdout.readline() == "ready True True\n"
        return end, process

    yield begin
    for process in made:
        process.kill()
        process.communicate()


Begin = Callable[[str], tuple[Connection, subprocess.Popen[str]]]


@pytest.mark.slow
def test_a_reader_that_is_killed_is_noticed_at_once(other_process: Begin) -> None:
    end, process = other_process("hears")
    threading.Timer(0.5, os.kill, (process.pid, signal.SIGKILL)).start()
    with pytest.raises(PeerDown, match="lost its connection to rank 1"):
        end.send(np.ones(1 << 20, np.uint8).data)


@pytest.mark.slow
def test_memory_of_a_killed_sender_is_never_taken_for_its_frame(other_process: Begin) -> None:
    end, process = other_process("lends")
    assert end.await_frame() == 1 << 20
    process.kill()
    process.wait()
    with pytest.raises(PeerDown):
        end.receive(np.zeros(1 << 20, np.uint8).data)


def test_a_sender_that_finds_it_cannot_go_on_hangs_up_before_its_memory_is_used_again() -> None:
    reader, doomed = pair(), pair()
    doomed[1].close()
    body = np.ones(1 << 20, np.uint8)
    with pytest.raises(PeerDown):
        move([Leaving(reader[0], body.data)], [Landing(doomed[0], memoryview(bytearray(8)))])
    with pytest.raises(PeerDown):
        reader[1].receive(np.zeros(1 << 20, np.uint8).data)


def test_a_sender_that_cannot_go_on_hangs_up_before_its_memory_is_used_again() -> None:
    reader, doomed = pair(), pair()
    body = np.ones(1 << 20, np.uint8)

    def lend() -> None:
        with pytest.raises(PeerDown):
            move([Leaving(reader[0], body.data)], [Landing(doomed[0], memoryview(bytearray(8)))])
        body[:] = 0

    lending = threading.Thread(target=lend)
    lending.start()
    assert reader[1].await_frame() == 1 << 20
    doomed[1].close()
    lending.join()
    with pytest.raises(PeerDown):
        reader[1].receive(np.zeros(1 << 20, np.uint8).data)
