"""Messages between two processes over a loopback socket: time by size, latency, bandwidth.

The other process is `python -m ratrain.profile.links HANDLE`; it inherits its end of the socket.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ratrain.profile.doubt import Watch

SIZES_BYTES = (1, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 25)
_REPEATS = 15
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class MessageTime:
    """One size measured: half of the median time there and back."""

    size_bytes: int
    time_s: float

    @property
    def figure(self) -> str:
        return message_figure(self.size_bytes)


def message_figure(size_bytes: int) -> str:
    """What a message is called in messages to people."""
    return f"message {size_bytes} bytes"


def message_times(watch: Watch) -> list[MessageTime]:
    """Each size, sent to another process and echoed whole."""
    near_end, far_end = _connected()
    with near_end:
        with far_end:
            handle = far_end.fileno()
            echo = subprocess.Popen(
                [sys.executable, "-P", "-m", "ratrain.profile.links", str(handle)],
                pass_fds=[handle],
                start_new_session=True,  # Ctrl-C is for the process that measures
            )
        try:
            near_end.settimeout(_TIMEOUT_S)
            return [
                MessageTime(size, _round_trip_s(watch, [echo.pid], near_end, size) / 2)
                for size in SIZES_BYTES
            ]
        finally:
            near_end.close()
            try:
                echo.wait(_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                echo.kill()
                echo.wait()


def _connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection, opened by this process, so that no one else can have one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_TIMEOUT_S)
        near_end = socket.create_connection(server.getsockname(), timeout=_TIMEOUT_S)
        while True:
            far_end, caller = server.accept()
            if caller == near_end.getsockname():
                break
            far_end.close()
    for end in (near_end, far_end):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near_end, far_end


def by_size(
    times: list[MessageTime], latency_s: float, bandwidth_bytes_per_s: float
) -> list[tuple[int, float]]:
    """(size, bandwidth) of each message that took longer than the latency: what its bytes reached
    in the rest of its time, but no more than the link's own."""
    return [
        (t.size_bytes, min(t.size_bytes / (t.time_s - latency_s), bandwidth_bytes_per_s))
        for t in times
        if t.size_bytes > 1 and t.time_s > latency_s
    ]


def latency_and_bandwidth(times: list[MessageTime]) -> tuple[float, float]:
    """(latency in s, bandwidth in bytes/s): the smallest message's time, and the slope of a line
    through the sizes from 1 MiB up. A disturbed measurement can make the line fall: then the
    largest message's own rate."""
    large = [t for t in times if t.size_bytes >= 1 << 20]
    slope, _ = np.polyfit([t.size_bytes for t in large], [t.time_s for t in large], 1)
    largest = max(large, key=lambda t: t.size_bytes)
    per_byte_s = float(slope) if slope > 0 else largest.time_s / largest.size_bytes
    return times[0].time_s, 1 / per_byte_s


def _round_trip_s(watch: Watch, helpers: list[int], sock: socket.socket, size_bytes: int) -> float:
    payload = bytearray(size_bytes)
    times: list[float] = []
    with watch.over(message_figure(size_bytes), helpers) as blocks_s:
        for _ in range(_REPEATS):
            began = time.perf_counter()
            sock.sendall(payload)
            _receive(sock, payload)
            times.append(time.perf_counter() - began)
        third = _REPEATS // 3
        blocks_s += [statistics.median(times[at : at + third]) for at in (0, third, 2 * third)]
    return statistics.median(times)


def echo(handle: int) -> None:
    """The other process: reads each message whole, then sends it back."""
    with (
        suppress(ConnectionError),  # whoever measures was interrupted
        socket.socket(fileno=handle) as sock,
    ):
        sock.settimeout(_TIMEOUT_S)
        for size_bytes in SIZES_BYTES:
            payload = bytearray(size_bytes)
            for _ in range(_REPEATS):
                _receive(sock, payload)
                sock.sendall(payload)


def _receive(source: socket.socket, into: bytearray) -> None:
    view = memoryview(into)
    while view:
        count = source.recv_into(view)
        if not count:
            raise ConnectionError("the other process ended")
        view = view[count:]


if __name__ == "__main__":
    echo(int(sys.argv[1]))
