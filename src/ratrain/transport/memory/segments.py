"""Memory that other processes of the host can map, so that reading it is a plain copy.

A segment is a sealed memfd: it can neither shrink nor grow, so a reader that has mapped it can
never get a SIGBUS. The owner tells its peers (pid, descriptor, address, size); a peer that may open
it under /proc maps it for reading, and copies pieces straight out of it. A peer that may not reads
it like any other memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ratrain import compiled
from ratrain.errors import SpecError

COPY_BYTES = 64 << 10  # below this, copy.c is not used
MAX_SEGMENTS = 256  # of one peer
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of this process; `fd` stays open as long as peers may map it."""

    fd: int
    base: int
    size_bytes: int
    array: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A peer's segment: its address in the peer (`base`) and in this process (`address`)."""

    base: int
    size_bytes: int
    address: int
    array: npt.NDArray[np.uint8]  # keeps the mapping alive


def create(size_bytes: int) -> Segment:
    """A new zeroed segment."""
    if size_bytes < 1:
        raise SpecError(f"a segment of {size_bytes} bytes", fix="allocate 1 byte or more")
    fd = os.memfd_create("ratnet", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        space = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    except (OSError, ValueError, OverflowError) as error:
        os.close(fd)
        raise SpecError(
            f"cannot allocate a segment of {size_bytes} bytes: {error}", fix="allocate less"
        ) from error
    array = np.frombuffer(space, np.uint8)
    return Segment(fd, int(array.ctypes.data), size_bytes, array)


def map_peer(pid: int, fd: int, base: int, size_bytes: int) -> Mapped | None:
    """A peer's segment, mapped for reading; None if that is not allowed or it is not sealed."""
    with contextlib.suppress(OSError, ValueError, OverflowError):
        opened = os.open(str(Path(f"/proc/{pid}/fd/{fd}")), os.O_RDONLY | os.O_CLOEXEC)
        try:
            seals = fcntl.fcntl(opened, fcntl.F_GET_SEALS)
            if not seals & fcntl.F_SEAL_SHRINK or os.fstat(opened).st_size < size_bytes:
                return None
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            space = mmap.mmap(opened, size_bytes, flags, mmap.PROT_READ)
        finally:
            os.close(opened)
        array = np.frombuffer(space, np.uint8)
        return Mapped(base, size_bytes, int(array.ctypes.data), array)
    return None


def copy(to: int, source: int, size: int) -> None:
    """Copy bytes from address to address, outside the interpreter's lock."""
    library = compiled.library("transport/memory", "copy_c") if size >= COPY_BYTES else None
    if library is None:
        ctypes.memmove(to, source, size)
    else:
        library.ratrain_copy(ctypes.c_void_p(to), ctypes.c_void_p(source), compiled.c_long(size))
