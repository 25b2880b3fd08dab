"""Memory as rows of (address, length), moved by the kernel outside the interpreter's lock."""

from __future__ import annotations

import ctypes
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ratrain.transport.wire.frames import Head

Iov = npt.NDArray[np.uint64]
"""Rows of (address, length), as the kernel's struct iovec."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_libc.process_vm_readv.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)
_libc.writev.restype = ctypes.c_ssize_t
_libc.readv.restype = ctypes.c_ssize_t
_IOV_MAX: Final = 1024


class Rows:
    """Pages to send or to fill, from the first to the last."""

    __slots__ = ("iov", "row")

    def __init__(self, iov: Iov) -> None:
        self.iov = iov
        self.row = 0

    def send(self, sock: socket.socket) -> int:
        """Send some of them; the number of rows left."""
        self._move(_libc.writev, sock.fileno())
        return len(self.iov) - self.row

    def fill(self, sock: socket.socket) -> int:
        """Receive straight into the pages; the number of bytes received."""
        return self._move(_libc.readv, sock.fileno())

    def skip(self, size: int) -> None:
        """Move forward by `size` bytes."""
        lengths = self.iov[self.row : self.row + _IOV_MAX, 1]
        while size:
            ends = np.cumsum(lengths)
            whole = int(np.searchsorted(ends, size, side="right"))
            used = int(ends[whole - 1]) if whole else 0
            self.row += whole
            size -= used
            if whole < len(lengths):
                self.iov[self.row] += np.array([size, -size], np.int64).astype(np.uint64)
                return
            lengths = self.iov[self.row : self.row + _IOV_MAX, 1]

    def put(self, data: memoryview) -> None:
        """Copy `data` to where the next bytes belong."""
        source = np.frombuffer(data, np.uint8).ctypes.data
        left = len(data)
        for address, length in self.iov[self.row : self.row + left].tolist():
            size = min(left, length)
            ctypes.memmove(address, source, size)
            source += size
            left -= size
            if not left:
                break
        self.skip(len(data))

    def _move(self, call: Callable[[int, ctypes.c_void_p, int], int], fd: int) -> int:
        rows = min(len(self.iov) - self.row, _IOV_MAX)
        at = self.iov.ctypes.data + 16 * self.row
        moved: int = call(fd, ctypes.c_void_p(at), rows)
        if moved <= 0:
            code = ctypes.get_errno() if moved < 0 else errno.ECONNRESET
            if code in (errno.EAGAIN, errno.EINTR):
                raise BlockingIOError
            raise OSError(code, "vector input/output failed")
        self.skip(moved)
        return moved


def pages_iov(base: int, offsets: Sequence[int] | npt.NDArray[np.uint64], page_len: int) -> Iov:
    """The rows of pages at `offsets` from `base`."""
    iov = np.empty((len(offsets), 2), np.uint64)
    iov[:, 0] = np.asarray(offsets, np.uint64) + np.uint64(base)
    iov[:, 1] = page_len
    return iov


def gather(rows: Iov) -> memoryview:
    """A copy of the bytes of `rows`, one row after the other."""
    lengths = rows[:, 1]
    room = bytearray(int(lengths.sum()))
    if room:
        at = ctypes.addressof(ctypes.c_char.from_buffer(room))
        for address, length in rows.tolist():
            ctypes.memmove(at, address, length)
            at += length
    return memoryview(room)


def read_process(pid: int, local: Iov, remote: Iov) -> bool:
    """Copy `remote` rows of process `pid` into `local` rows (process_vm_readv); true if whole."""
    for at in range(0, len(local), _IOV_MAX):
        count = min(_IOV_MAX, len(local) - at)
        want = int(local[at : at + count, 1].sum())
        here, there = local.ctypes.data + 16 * at, remote.ctypes.data + 16 * at
        got: int = _libc.process_vm_readv(pid, here, count, there, count, 0)
        if got != want:
            return False
    return True


def read_span(pid: int, to: int, source: int, size: int) -> bool:
    """Copy `size` bytes at `source` of process `pid` to `to`; true if whole."""
    rows = (ctypes.c_uint64 * 4)(to, size, source, size)
    return _libc.process_vm_readv(pid, rows, 1, ctypes.byref(rows, 16), 1, 0) == size


def remote_rows(head: Head, extra: bytes) -> Iov:
    """Where the bytes of a piece lie in the peer's memory: its pages, or its one span."""
    if not head.pages:
        return np.array([[int.from_bytes(extra, "big"), head.size]], np.uint64)
    sources = np.frombuffer(extra, ">u8")[head.pages :].astype(np.uint64)
    return pages_iov(0, sources, head.page_len)
