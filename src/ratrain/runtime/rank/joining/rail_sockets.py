"""A connection's further sockets, where both its ranks' hosts are on several networks: one over
each of them, in the order in which both hosts say their addresses. They are dialled before the
connection itself, whose first words say which of them came about."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence

from ratrain.errors import HandshakeFailed
from ratrain.runtime.rank.joining.near_sockets import Address
from ratrain.runtime.rank.joining.rendezvous import Joined
from ratrain.runtime.step.network.links import BROADCASTS, Need

_CALL_S = 5.0


class RailDialler:
    """Dials rails, and leaves out networks that have once not brought anybody to a peer."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._lost: set[tuple[int, int]] = set()

    def dial(self, need: Need) -> dict[int, socket.socket]:
        """By the number of the network, the peer's address first; nothing where one is enough."""
        peer, channel = need
        if channel in BROADCASTS.values():
            return {}
        made: dict[int, socket.socket] = {}
        for number, (own, theirs) in enumerate(self._networks(peer)):
            if (peer, number) not in self._lost:
                sock = self._call(need, number, own, theirs)
                if sock is not None:
                    made[number] = sock
        if len(made) == 1:
            made.popitem()[1].close()
        return made

    def _networks(self, peer: int) -> Sequence[tuple[Address, Address]]:
        joined = self._joined
        own, theirs = ((joined.book[rank], *joined.networks[rank]) for rank in (joined.rank, peer))
        pairs = list(zip(own, theirs, strict=False))
        return pairs if len(pairs) > 1 and own[0][0] != theirs[0][0] else []

    def _call(self, need: Need, number: int, own: Address, theirs: Address) -> socket.socket | None:
        words = json.dumps([self._joined.rank, need[1], number]).encode()
        try:
            sock = socket.create_connection(theirs, timeout=_CALL_S, source_address=(own[0], 0))
            return self._joined.gate.greet(sock, words, time.monotonic() + _CALL_S)
        except (OSError, HandshakeFailed) as error:
            self._lost.add((need[0], number))
            reason = error.what if isinstance(error, HandshakeFailed) else error.strerror or error
            print(
                f"rank {need[0]} is not reached at {theirs[0]} from {own[0]} ({reason}): bytes go "
                "over the other networks",
                flush=True,
            )
            return None
