"""All connections that a rank needs, made once, before anything is sent; then it listens no more.

Of two ranks the higher one connects, to one of its own machine without the network. It says who it
is and for which channel, in the words of its proof; and over which networks, where there are
several: `[rank, channel, [0, 1]]` behind `[rank, channel, 0]` and `[rank, channel, 1]`.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping

from ratrain.errors import HandshakeFailed, RunFailed, SpecError
from ratrain.readers.json import parse_json
from ratrain.runtime.rank.joining.handshake import HandshakeListener
from ratrain.runtime.rank.joining.near_sockets import call_near, introduced
from ratrain.runtime.rank.joining.rail_sockets import RailDialler
from ratrain.runtime.rank.joining.rendezvous import Joined
from ratrain.runtime.step.network.connection import Connection
from ratrain.runtime.step.network.links import Links, Need

_DIAL_S = 20.0
"""For one connection: its other end may have a small share of a processor, and much to do."""
_PAUSE_S = 0.1


def connect_all(
    joined: Joined, needs: Collection[Need], patience_s: float, *, readable: bool = True
) -> Links:
    """A connection for each need. All ranks of the attempt call this together. `patience_s`: how
    long each connection then waits for a silent peer; `readable`: what this rank sends lies in
    memory that others of its machine can read."""
    expected = {need for need in needs if need[0] > joined.rank}
    arrivals = _Arrivals(expected)
    listeners = [joined.listener, *joined.further]
    listeners += [joined.near] if joined.near is not None else []
    handshakes = [
        HandshakeListener(listener, joined.gate, arrivals.answer, arrivals.take)
        for listener in listeners
    ]
    try:
        below = [need for need in needs if need[0] < joined.rank]
        dialler = RailDialler(joined)
        dialled = {need: dialler.dial(need) for need in below}
        called = {need: _dial(joined, need, dialled[need], near=readable) for need in below}
        came = arrivals.all(joined, patience_s)
        sockets, rails = {**called, **came}, {**dialled, **arrivals.rails}
    finally:
        for each in handshakes:
            each.close()
        joined.close()
    try:
        near = introduced(sockets, readable=readable)
    except OSError as error:
        raise RunFailed(
            f"rank {joined.rank} lost a rank of its machine: {error.strerror or error}",
            place=f"rank {joined.rank}",
            fix="look into that rank's log",
        ) from error
    rank = joined.rank
    copied = sorted({need[0] for need, one in near.items() if readable and not one.reads})
    if copied:
        names = ", ".join(map(str, copied))
        print(f"the memory of rank {names} cannot be read from here: bytes go through a socket")
    return {
        need: Connection(
            sock, rank, need[0], patience_s, near.get(need), _in_order(rails.get(need, {}))
        )
        for need, sock in sockets.items()
    }


class _Arrivals:
    """The connections that other ranks make to this one."""

    def __init__(self, expected: Collection[Need]) -> None:
        self._expected = set(expected)
        self._came: dict[Need, socket.socket] = {}
        self._awaits: dict[Need, Collection[int]] = {}  # the numbers of its rails
        self._changed = threading.Condition()
        self.rails: dict[Need, dict[int, socket.socket]] = defaultdict(dict)

    def answer(self, message: bytes) -> bytes:
        need, _ = _read(message)
        if need not in self._expected or need in self._came:
            raise HandshakeFailed(
                f"rank {need[0]} connected for {need[1]!r}, where it is not expected"
            )
        return b""

    def take(self, message: bytes, sock: socket.socket) -> None:
        need, rails = _read(message)
        with self._changed:
            if need in self._came:
                sock.close()
            elif isinstance(rails, int):
                self.rails[need][rails] = sock
            else:
                self._came[need], self._awaits[need] = sock, rails
            self._changed.notify_all()

    def all(self, joined: Joined, patience_s: float) -> dict[Need, socket.socket]:
        """Waits for the last of them."""
        call_back = joined.call_back
        call_back.ends(self._look)
        with self._changed:
            if not self._changed.wait_for(
                lambda: not self._missing or call_back.error is not None, max(patience_s, _DIAL_S)
            ):
                late = sorted({peer for peer, _ in self._missing})
                raise RunFailed(
                    f"rank {joined.rank} waited {patience_s:g} s for connections from rank"
                    f"{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}",
                    place=f"rank {joined.rank}",
                    fix="check that the machines can reach each other on all ports",
                )
            call_back.require()
            for need, made in self.rails.items():
                for number in made.keys() - set(self._awaits[need]):
                    made.pop(number).close()  # the other end had given it up
            return self._came

    def _look(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @property
    def _missing(self) -> set[Need]:
        return {need for need in self._expected if not self._is_whole(need)}

    def _is_whole(self, need: Need) -> bool:
        return need in self._came and self.rails[need].keys() >= set(self._awaits[need])


def _in_order(rails: Mapping[int, socket.socket]) -> list[socket.socket]:
    return [rails[number] for number in sorted(rails)]


def _dial(joined: Joined, need: Need, rails: Collection[int], *, near: bool) -> socket.socket:
    """The connection, to a rank of this machine a near one if asked; strangers who crowd the peer's
    listener may make it take several calls."""
    address, port = joined.book[need[0]]
    end_s = time.monotonic() + _DIAL_S
    while True:
        try:
            return _call(joined, need, rails, end_s, near=near)
        except (OSError, HandshakeFailed) as error:
            joined.call_back.require()
            if time.monotonic() < end_s - _PAUSE_S:
                time.sleep(_PAUSE_S)
                continue
            reason = error.what if isinstance(error, HandshakeFailed) else error.strerror or error
            raise RunFailed(
                f"rank {joined.rank} cannot reach rank {need[0]} at {address}, port {port}: "
                f"{reason}",
                place=f"rank {joined.rank}",
                fix="check that the machines can reach each other on all ports",
            ) from error


def _call(
    joined: Joined, need: Need, rails: Collection[int], end_s: float, *, near: bool
) -> socket.socket:
    left_s = max(end_s - time.monotonic(), _PAUSE_S)
    words = json.dumps([joined.rank, need[1], sorted(rails)]).encode()
    own, peer = (joined.book[rank] for rank in (joined.rank, need[0]))
    if near and own[0] == peer[0]:
        found = call_near(peer, joined.gate, words, end_s)
        if found is not None:
            return found
    return joined.gate.greet(socket.create_connection(peer, timeout=left_s), words, end_s)


def _read(message: bytes) -> tuple[Need, int | list[int]]:
    """For which need, and the number of the rail that this is; or of those it has."""
    try:
        (peer, channel, rails), _ = parse_json(message, "a rank's first message")
        need = int(peer), str(channel)
        return need, rails if isinstance(rails, int) else [int(number) for number in rails]
    except (SpecError, ValueError, TypeError) as error:
        raise HandshakeFailed("the message does not name a rank and a channel") from error
