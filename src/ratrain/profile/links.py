"""Messages between two processes over a loopback socket: time by size, latency, bandwidth."""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import time
from dataclasses import dataclass

import numpy as np

SIZES_BYTES = (1, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 25)
_REPEATS = 15
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class MessageTime:
    """One size measured: half of the median time there and back."""

    size_bytes: int
    time_s: float


def message_times() -> list[MessageTime]:
    """Each size, sent to another process and echoed whole."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_TIMEOUT_S)
        port: int = server.getsockname()[1]
        other = multiprocessing.get_context("spawn").Process(target=_echo, args=(port,))
        other.start()
        try:
            here, _ = server.accept()
            with here:
                here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                here.settimeout(_TIMEOUT_S)
                return [MessageTime(size, _round_trip_s(here, size) / 2) for size in SIZES_BYTES]
        finally:
            other.join(_TIMEOUT_S)
            if other.is_alive():
                other.terminate()


def latency_and_bandwidth(times: list[MessageTime]) -> tuple[float, float]:
    """(latency in s, bandwidth in bytes/s): the smallest message's time, and the slope of a line
    through the sizes from 1 MiB up."""
    large = [t for t in times if t.size_bytes >= 1 << 20]
    slope, _ = np.polyfit([t.size_bytes for t in large], [t.time_s for t in large], 1)
    return times[0].time_s, float(1 / slope)


def _round_trip_s(here: socket.socket, size_bytes: int) -> float:
    payload = bytearray(size_bytes)
    found: list[float] = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        here.sendall(payload)
        _receive(here, payload)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def _echo(port: int) -> None:
    """The other process: reads each message whole, then sends it back."""
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as there:
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size_bytes in SIZES_BYTES:
            payload = bytearray(size_bytes)
            for _ in range(_REPEATS):
                _receive(there, payload)
                there.sendall(payload)


def _receive(source: socket.socket, into: bytearray) -> None:
    view = memoryview(into)
    while view:
        got = source.recv_into(view)
        if not got:
            raise ConnectionError("the other process ended")
        view = view[got:]
