"""Sockets between ranks of one machine: named after the address at which a rank listens for all, in
the namespace of the network that both are in. Who connects proves the run's secret as everywhere.

Emulated hosts of a lab have networks of their own, and so do not meet here.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress

from ratrain.errors import HandshakeFailed
from ratrain.runtime.rank.joining.handshake import Gate
from ratrain.runtime.step.network.links import Need
from ratrain.runtime.step.network.near import Introduction, Near, let_read

Address = tuple[str, int]
_BACKLOG = 512


def listen_near(address: Address) -> socket.socket | None:
    """Where ranks of this machine come to; None where the system has no such sockets, or somebody
    has the name: they come over the network then."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_name(address))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        return None
    return listener


def call_near(
    address: Address, gate: Gate, words: bytes, deadline_s: float
) -> socket.socket | None:
    """A connection to a rank that listens there; None where it is not on this machine, or who
    answers cannot prove the secret."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(_name(address))
        return gate.greet(sock, words, deadline_s)
    except (OSError, HandshakeFailed):
        sock.close()
        return None


def introduced(sockets: Mapping[Need, socket.socket], *, readable: bool) -> dict[Need, Near]:
    """What is agreed with each peer that was met here. Both ends call this; `readable`: what this
    rank sends lies in memory that others can read."""
    near = {need: sock for need, sock in sorted(sockets.items()) if _is_near(sock)}
    let_read()
    made = {need: Introduction(sock, readable=readable) for need, sock in near.items()}
    for introduction in made.values():
        introduction.hear()
    return {need: introduction.agree() for need, introduction in made.items()}


def close_all(sockets: Iterable[socket.socket | None]) -> None:
    for sock in sockets:
        if sock is not None:
            with suppress(OSError):
                sock.close()


def _is_near(sock: socket.socket) -> bool:
    return sock.family == getattr(socket, "AF_UNIX", None)


def _name(address: Address) -> str:
    return "\0ratrain {} {}".format(*address)
