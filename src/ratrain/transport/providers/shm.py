"""The provider `shm`: frames over AF_UNIX, large payloads copied once, by the receiver.

The receiver copies out of segments that it has mapped, and out of other memory with
process_vm_readv. Each side first tries whether the kernel allows that (a nonce at a known address);
where it does not, payloads go through the socket.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket

import numpy as np

from ratrain.transport.engine.channel import Landing
from ratrain.transport.loop.driver import Driver
from ratrain.transport.memory.rows import read_process, read_span, remote_rows
from ratrain.transport.memory.segments import MAX_SEGMENTS, Mapped, Segment, copy, map_peer
from ratrain.transport.providers.stream import SEGMENT, StreamChannel
from ratrain.transport.wire import frames
from ratrain.transport.wire.frames import Head

_NONCE_BYTES = 16


class ShmChannel(StreamChannel):
    """One connection to a process of the same host."""

    def __init__(self, driver: Driver, sock: socket.socket, peer_pid: int) -> None:
        super().__init__(driver, sock, "shm", "shm")
        self._peer_pid = peer_pid
        self._mapped: list[Mapped] = []  # the peer's segments

    def offer(self, segment: Segment) -> None:
        """Part of Channel."""
        head = Head(frames.FEATURE, imm=SEGMENT, tid=segment.fd, total=segment.size_bytes)
        self.post(head._replace(key=segment.base), b"", None)

    def close(self) -> None:
        """Part of Channel."""
        super().close()
        self._mapped.clear()

    def _learn(self, head: Head) -> None:
        if head.imm == SEGMENT and self._peer_pid and len(self._mapped) < MAX_SEGMENTS:
            mapped = map_peer(self._peer_pid, head.tid, head.key, head.total)
            if mapped is not None:
                self._mapped.append(mapped)
        else:
            super()._learn(head)

    def _fetch(self, landing: Landing, extra: bytes) -> bool:
        size, pid = landing.head.size, self._peer_pid
        if landing.iov is not None:
            return read_process(pid, landing.iov, remote_rows(landing.head, extra))
        source = int.from_bytes(extra, "big")
        for segment in self._mapped:
            at = source - segment.base
            if 0 <= at <= segment.size_bytes - size:
                copy(landing.offset, segment.address + at, size)
                return True
        return read_span(pid, landing.offset, source, size)


class Nonce:
    """Random bytes at an address that a peer is told, to try whether it can read them there."""

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(secrets.token_bytes(_NONCE_BYTES), _NONCE_BYTES)

    def probe(self) -> tuple[int, int, str]:
        """What the peer is told: this process, the address, the bytes."""
        return os.getpid(), ctypes.addressof(self._bytes), self._bytes.raw.hex()


def can_read(probe: tuple[int, int, str] | None) -> bool:
    """True if the kernel lets us read the memory of the peer that sent `probe`."""
    if probe is None:
        return False
    pid, address, nonce = probe
    copied = np.zeros(_NONCE_BYTES, np.uint8)
    local = np.array([[copied.ctypes.data, _NONCE_BYTES]], np.uint64)
    remote = np.array([[address, _NONCE_BYTES]], np.uint64)
    return read_process(pid, local, remote) and copied.tobytes().hex() == nonce
