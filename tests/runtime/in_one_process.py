"""Networks of ranks that are threads of one process, over real connections: many small groups cost
little time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from ratrain.runtime.seats import Seats
from ratrain.runtime.step.network.connection import Connection
from ratrain.runtime.step.network.links import Need, Routes, all_needs
from ratrain.runtime.step.network.near import Introduction, Near
from ratrain.runtime.step.network.socket_network import SocketNetwork

T = TypeVar("T")
PATIENCE_S = 60.0


def replicas(count: int) -> Seats:
    """Replicas of one stage each."""
    return Seats(1, count, (0,) * count, (0,))


def networks(
    seats: Seats, routes: Routes, hosts: Sequence[int], *, near: bool = False
) -> list[SocketNetwork]:
    """Every rank's network; `near`: ranks read each other's memory."""
    needs = [all_needs(seats, seat, routes) for seat in seats.all()]
    links: list[dict[Need, Connection]] = [{} for _ in needs]
    for rank, of_rank in enumerate(needs):
        for peer, name in of_rank:
            if peer > rank:
                ends = socket.socketpair()
                agreed = introduced(ends) if near else (None, None)
                links[rank][peer, name] = Connection(ends[0], rank, peer, PATIENCE_S, agreed[0])
                links[peer][rank, name] = Connection(ends[1], peer, rank, PATIENCE_S, agreed[1])
    return [
        SocketNetwork(seats, seat, of_rank, hosts, divides_rows=routes.divides_rows)
        for seat, of_rank in zip(seats.all(), links, strict=True)
    ]


def introduced(ends: tuple[socket.socket, socket.socket]) -> tuple[Near, Near]:
    """What both ends of a connection agree about each other's memory."""
    first, second = (Introduction(end, readable=True) for end in ends)
    first.hear()
    second.hear()
    return first.agree(), second.agree()


def on_all(crowd: Sequence[SocketNetwork], work: Callable[[int, SocketNetwork], T]) -> list[T]:
    """What `work` gives on each rank, all of them at once."""
    answers: dict[int, T] = {}
    problems: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            answers[rank] = work(rank, crowd[rank])
        except BaseException as error:
            problems.append(error)
            crowd[rank].close()  # the others do not wait for it

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(crowd))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return [answers[rank] for rank in range(len(crowd))]


def close_all(crowd: Sequence[SocketNetwork]) -> None:
    """Every connection's end."""
    for network in crowd:
        network.close()
