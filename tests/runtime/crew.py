"""Processes that stay and run one configuration after another, so that many cost little time."""

from __future__ import annotations

import multiprocessing as mp
import os
import secrets
import socket
import traceback
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from itertools import pairwise, product
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch

from ratrain.devices import CPU, Device
from ratrain.runtime.environment import Launch
from ratrain.runtime.rank.joining.handshake import Gate
from ratrain.runtime.rank.joining.networks import connected
from ratrain.runtime.rank.joining.rendezvous import Joined, join
from ratrain.runtime.seats import Seat, Seats
from ratrain.runtime.step.network.links import Routes
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.network.staged_network import StagedNetwork, Staging

Work = Callable[..., Any]
"""What a rank is asked to do: called with (rank, world size, what the asker gave)."""

PATIENCE_S = 300


@contextmanager
def one_thread() -> Generator[None]:
    """Processes that begin now compute on one thread, whatever thread of theirs asks. What
    `torch.set_num_threads` says reaches MKL in the thread that says it, and others only once they
    have done something else than a product: of 9 rows two threads make other bits."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


class Crew:
    """`size` processes with torch loaded; for each `ask` the first of them meet anew."""

    def __init__(self, size: int) -> None:
        context = mp.get_context("spawn")
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        port = listener.getsockname()[1]
        secret = secrets.token_bytes(32)
        self._ends: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(size):
            mine, theirs = context.Pipe()
            arguments = rank, None if rank else listener, port, secret, theirs
            process = context.Process(target=_member, args=arguments, daemon=True)
            with one_thread():
                process.start()
            theirs.close()
            self._ends.append(mine)
            self._processes.append(process)
        listener.close()  # rank 0 has it: this process is seen to listen at no port

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def ask(self, world_size: int, work: Work, *given: Any) -> list[Any]:
        """What `work` returned on each rank; the first rank's failure is raised."""
        for end in self._ends[:world_size]:
            end.send((world_size, work, given))
        answers: list[Any] = []
        for rank, end in enumerate(self._ends[:world_size]):
            if not end.poll(PATIENCE_S):
                raise AssertionError(f"rank {rank} does not answer: {work.__name__} {given}")
            answers.append(end.recv())
        for rank, (problem, _) in enumerate(answers):
            assert not problem, f"rank {rank}: {problem}"
        return [result for _, result in answers]


_joined: Joined | None = None
"""In a member, while it works: the ranks that were asked."""
_closing = ExitStack()
"""In a member: what its work has opened."""


def network_among(
    seats: Seats,
    seat: Seat,
    routes: Routes,
    kind: str = "sockets",
    *,
    timeout_s: float = 30,
    hosts: tuple[int, ...] = (),
    device: Device = CPU,
) -> Network:
    """A member's network among those that were asked; "staged": as of a device with memory of its
    own; "direct": gloo carries tensors of a device, one op at a time."""
    direct = kind == "direct"
    place = device if direct else CPU
    network, _ = connected(
        seats, seat, routes, joined(), timeout_s, hosts, device=place, direct=direct
    )
    _closing.callback(network.close)
    return StagedNetwork(network, Staging(pinned=False)) if kind == "staged" else network


def joined() -> Joined:
    """A member's, of those that were asked."""
    assert _joined is not None
    return _joined


def grid_routes(seats: Seats, *, tied: bool = False) -> Routes:
    """Of replicas divided alike, each of whose last ranks sends to the first too."""
    hops = set(pairwise(range(seats.pipeline))) | {(seats.pipeline - 1, 0)} - {(0, 0)}
    groups = tuple(
        tuple(seats.world_rank(pipeline, data, tensor) for data in range(seats.data))
        for pipeline, tensor in product(range(seats.pipeline), range(seats.tensor))
    )
    return Routes(hops, groups, tied=tied)


def _member(
    rank: int, listener: socket.socket | None, port: int, secret: bytes, end: Connection
) -> None:
    global _joined
    torch.set_num_threads(1)
    while True:
        world_size, work, given = end.recv()
        handle = None if listener is None else os.dup(listener.fileno())
        try:
            launch = Launch(rank, world_size, "127.0.0.1", port, handle)
            with _closing:  # where this rank fails, the others do not wait for it
                _joined = join(launch, Gate(secret), PATIENCE_S)
                _closing.callback(_joined.broadcast.close)
                result = work(rank, world_size, *given)
                _joined.everybody("")  # no rank leaves while another still communicates
            end.send(("", result))
        except BaseException:
            end.send((traceback.format_exc(), None))
