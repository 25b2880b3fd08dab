"""Which congestion control a connection between ranks runs with.

BBR finds its rate by probing while it sends. Ranks send for a tenth of a second, pause while they
compute, and several streams share a link: there, exchanges under BBR took 5 to 25 % longer than
their bytes need, under CUBIC or Reno 2 to 9 % (benchmarks/runtime/congestion.py). Over long ways,
where packets are lost on the way, BBR is the better one, and any other choice of the machine's
owner stays.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

LONG_ROUND_TRIP_S = 0.01
_INSTEAD = (b"cubic", b"reno")
"""The first that the machine lets this user have."""
_ROUND_TRIP = struct.Struct("68xI")
"""Where the kernel's `struct tcp_info` has its smoothed round trip, in microseconds."""


def choose_congestion(sock: socket.socket) -> None:
    """Gives a connection another one where BBR would cost time, if the machine has one."""
    with suppress(OSError, AttributeError):
        name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        described = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP.size)
        (round_trip_us,) = _ROUND_TRIP.unpack(described)
        if is_slower(name.rstrip(b"\0").decode(), round_trip_us / 1e6):
            _leave(sock)


def _leave(sock: socket.socket) -> None:
    for name in _INSTEAD:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
            return


def is_slower(name: str, round_trip_s: float) -> bool:
    """Whether the congestion control of a name costs time over such a way."""
    return name.startswith("bbr") and round_trip_s < LONG_ROUND_TRIP_S
