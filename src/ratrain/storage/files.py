"""The operating system's calls on files of a tier, and what the file system can do."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from typing import Protocol

from ratrain.storage.pages import PAGE, page_buffer

DIRECT = getattr(os, "O_DIRECT", 0)
"""Past the page cache; 0 where the system has no such thing."""


class Files(Protocol):
    """What a store asks of a file system. Counts may be short, as those of the system are."""

    def is_direct(self, folder: Path) -> bool:
        """Whether files here can be read and written past the page cache."""
        ...

    def open(self, path: Path, *, direct: bool) -> int: ...

    def allocate(self, file: int, size_bytes: int) -> None:
        """Gives a file all of its blocks."""
        ...

    def read(self, file: int, into: memoryview, offset: int) -> int: ...

    def write(self, file: int, data: memoryview, offset: int) -> int: ...

    def flush(self, file: int) -> None: ...

    def forget(self, file: int) -> None:
        """Lets the page cache drop what it has of a flushed file."""
        ...

    def link(self, path: Path, to: Path) -> None:
        """Gives a file another name, under which all may read it."""
        ...

    def free_bytes(self, folder: Path) -> int: ...

    def close(self, file: int) -> None: ...


class OsFiles:
    """The system's own."""

    def is_direct(self, folder: Path) -> bool:
        """Tried out, with one page."""
        if not DIRECT:
            return False
        path = folder / f".direct-{os.getpid()}"
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | DIRECT, 0o600)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOTSUP):
                path.unlink(missing_ok=True)
                return False
            raise
        try:
            page = page_buffer(PAGE)
            return os.pwritev(file, [page], 0) == PAGE and os.preadv(file, [page], 0) == PAGE
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOTSUP):
                return False
            raise
        finally:
            os.close(file)
            path.unlink(missing_ok=True)

    def open(self, path: Path, *, direct: bool) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | (DIRECT if direct else 0), 0o600)

    def allocate(self, file: int, size_bytes: int) -> None:
        os.posix_fallocate(file, 0, size_bytes)

    def read(self, file: int, into: memoryview, offset: int) -> int:
        return os.preadv(file, [into], offset)

    def write(self, file: int, data: memoryview, offset: int) -> int:
        return os.pwritev(file, [data], offset)

    def flush(self, file: int) -> None:
        os.fdatasync(file)

    def forget(self, file: int) -> None:
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def link(self, path: Path, to: Path) -> None:
        made = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)  # as the umask has it
        mode = os.fstat(made).st_mode
        os.close(made)
        to.unlink()
        path.chmod(S_IMODE(mode))
        os.link(path, to)

    def free_bytes(self, folder: Path) -> int:
        stat = os.statvfs(folder)
        return stat.f_bavail * stat.f_frsize

    def close(self, file: int) -> None:
        os.close(file)
