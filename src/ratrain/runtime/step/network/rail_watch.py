"""Looks after connections over several networks: where one of these brings nothing of what it was
given, the connection ends, so that ranks may meet again over the others.

Waiting for bytes does not tell a network that is cut from a peer that computes for long and takes
nothing: the latter's system acknowledges what arrives. So the own system is asked what is
unacknowledged, and was sent again in vain.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Collection
from contextlib import suppress

from ratrain.runtime.step.network.connection import Connection

SILENT_S = 10.0
"""So long may a network acknowledge nothing of what it was given."""
_LOOK_S = 1.0
_IN_VAIN = 3
_TCP_INFO = struct.Struct("@2xBB52xI")
"""Of Linux's `struct tcp_info`: how often in a row segments were sent again, or the peer was asked
for room, in vain; and milliseconds since the last acknowledgement."""


class RailWatch:
    """Watches those of the connections that have rails, in a thread of its own; to be closed."""

    def __init__(self, connections: Collection[Connection]) -> None:
        self._connections = [each for each in connections if each.rails is not None]
        self._over = threading.Event()
        if self._connections and sys.platform == "linux":
            threading.Thread(target=self._watch, name="rail watch", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while self._connections and not self._over.wait(_LOOK_S):
            self._connections = [each for each in self._connections if not _has_ended(each)]


def _has_ended(connection: Connection) -> bool:
    """Whether one of its networks is cut, or it has been closed; it is lost then."""
    try:
        cut = next((sock for sock in connection.sockets if _is_cut(sock)), None)
    except OSError:
        return True
    if cut is None:
        return False
    with suppress(OSError):
        connection.why_lost = (
            f"{cut.getpeername()[0]} acknowledges nothing from {cut.getsockname()[0]} any more"
        )
        print(f"rank {connection.peer}: {connection.why_lost}: its connection ends", flush=True)
    connection.hang_up()
    return True


def _is_cut(sock: socket.socket) -> bool:
    words = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    if len(words) < _TCP_INFO.size:
        return False
    again, asked, silent_ms = _TCP_INFO.unpack(words)
    return max(again, asked) >= _IN_VAIN and silent_ms >= 1000 * SILENT_S
