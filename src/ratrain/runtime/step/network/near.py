"""What ranks of one machine do for each other that sockets cannot: the receiver of a tensor reads
it out of the sender's memory, in one copy in place of two through the kernel.

A peer is on this machine where it was reached at a socket without an address of the network. Both
ends then try whether the kernel lets them read each other's memory: sixteen random bytes at an
address that they tell. Where it does not (another user's process, a container that forbids it), and
for small frames, bytes go through the socket.

The sender of such a frame has its memory read while it waits. If it cannot wait any longer, it
shuts the connection before it does anything else; so a reader that finds the connection open after
it has read has read what was sent.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NEAR_BYTES = 16 << 10
"""Smaller frames are through the socket before a reader is told of them."""
MOST_ROWS = 64
"""Places that the body of one frame may lie in; one of more goes through the socket."""
_PATIENCE_S = 60.0
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_PR_SET_PTRACER = 0x59616D61
_HELLO = struct.Struct("!IQ16s?")
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.process_vm_readv.restype = ctypes.c_ssize_t
_LIBC.process_vm_readv.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)

Row = tuple[int, int]
"""(address, bytes)."""


@dataclass(frozen=True)
class Near:
    """A peer on this machine, and what was tried with it. `read`: an eventfd of ours, which the
    peer counts up by what it has read of our frame; `has_read`: the peer's, for us."""

    pid: int
    reads: bool  # we may read its memory
    is_read: bool  # it may read ours
    read: int
    has_read: int

    def close(self) -> None:
        for fd in (self.read, self.has_read):
            os.close(fd)

    def taken(self) -> int:
        """Bytes that the peer has read since this was asked last."""
        try:
            return os.eventfd_read(self.read)
        except BlockingIOError:
            return 0

    def fetch(self, room: memoryview, rows: list[Row]) -> bool:
        """Fills a room from where rows begin, and takes that off them; whether all of it came."""
        there = list[int]()
        left = len(room)
        while left:
            address, size = rows[0]
            there += [address, min(size, left)]
            left -= there[-1]
            if there[-1] == size:
                rows.pop(0)
            else:
                rows[0] = address + there[-1], size - there[-1]
        return _read(self.pid, room, there)

    def tell_read(self, size_bytes: int) -> None:
        """The peer may go on with that much of its frame's memory."""
        with suppress(OSError):  # it has ended: the connection says so
            os.eventfd_write(self.has_read, size_bytes)


def rows_of(bodies: Sequence[memoryview]) -> list[Row] | None:
    """Where bytes lie; None where some of them cannot be read there."""
    if any(body.readonly for body in bodies) or len(bodies) > MOST_ROWS:
        return None
    return [
        (ctypes.addressof(ctypes.c_char.from_buffer(body)), len(body)) for body in bodies if body
    ]


class Introduction:
    """What this process tells a peer on the same machine, at its end of a connection. Both ends go
    through `hear` after both have made one, then through `agree`. `readable`: what we send lies
    where another process can read it."""

    def __init__(self, sock: socket.socket, *, readable: bool) -> None:
        self._sock, self._readable = sock, readable
        sock.settimeout(_PATIENCE_S)
        self._nonce = ctypes.create_string_buffer(secrets.token_bytes(16), 16)
        self._read = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        hello = _HELLO.pack(os.getpid(), ctypes.addressof(self._nonce), self._nonce.raw, readable)
        socket.send_fds(sock, [hello], [self._read])

    def hear(self) -> None:
        """Takes the peer's, tries to read its memory, and tells it whether that went well."""
        said, fds = _received(self._sock)
        self._has_read = fds[0]
        self._pid, address, nonce, readable = _HELLO.unpack(said)
        room = bytearray(len(nonce))
        came = readable and _read(self._pid, memoryview(room), [address, len(room)])
        self._reads = came and bytes(room) == nonce
        self._sock.sendall(bytes([self._reads]))

    def agree(self) -> Near:
        """With what the peer found."""
        answer = self._sock.recv(1)
        if not answer:
            raise ConnectionResetError("the peer has ended")
        is_read = bool(answer[0]) and self._readable
        return Near(self._pid, self._reads, is_read, self._read, self._has_read)


def let_read() -> None:
    """Processes of this user may read this one's memory, where a kernel's Yama forbids it
    otherwise."""
    with suppress(OSError, ValueError):
        if _YAMA.exists() and int(_YAMA.read_text()) == 1:
            _LIBC.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1 & (1 << 64) - 1), 0, 0, 0)


def _received(sock: socket.socket) -> tuple[bytes, list[int]]:
    said, fds = b"", list[int]()
    while len(said) < _HELLO.size:
        part, more, _, _ = socket.recv_fds(sock, _HELLO.size - len(said), 1)
        if not part:
            raise ConnectionResetError("the peer has ended")
        said, fds = said + part, fds + more
    if len(fds) != 1:
        raise ConnectionResetError("the peer sent no eventfd")
    return said, fds


def _read(pid: int, room: memoryview, there: Sequence[int]) -> bool:
    """Whether bytes of a process, (address, size) one after the other, came into a room."""
    here = (ctypes.c_uint64 * 2)(ctypes.addressof(ctypes.c_char.from_buffer(room)), len(room))
    rows = (ctypes.c_uint64 * len(there))(*there)
    count = _LIBC.process_vm_readv(pid, here, 1, rows, len(there) // 2, 0)
    return int(count) == len(room)
