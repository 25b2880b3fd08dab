"""Bytes to and from files. Whatever the system refuses becomes one `CheckpointError`."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from ratrain.describe.units import format_bytes
from ratrain.errors import CheckpointError
from ratrain.readers.files import NO_MORE_FILES, takes_no_more_files

FULL = (errno.ENOSPC, errno.EDQUOT)
FIX_FULL = "free that much or more, or keep fewer checkpoints ([checkpoint] keep)"
FIX_FILES = "remove files that are not needed, or keep fewer checkpoints ([checkpoint] keep)"


@contextmanager
def told(place: Path, doing: str, missing_bytes: Callable[[], int] = lambda: 0) -> Generator[None]:
    """An `OSError` becomes a `CheckpointError`; `missing_bytes` counts what a full disk lacks."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{doing} failed: the folder is gone; another rank may have abandoned this checkpoint",
            place=str(place),
            fix="see the other ranks' messages; all ranks must share one file system",
        ) from error
    except OSError as error:
        if error.errno not in FULL:
            raise CheckpointError(
                f"{doing} failed: {error.strerror}",
                place=str(error.filename or place),
                fix="repair the folder or choose another one",
            ) from error
        raise full(place, missing_bytes()) from error


def full(folder: Path, missing_bytes: int) -> CheckpointError:
    """The error of a full disk; `missing_bytes` is 0 where it is not known."""
    if takes_no_more_files(folder):
        return CheckpointError(NO_MORE_FILES, place=str(folder), fix=FIX_FILES)
    lack = f": at least {format_bytes(missing_bytes)} missing" if missing_bytes > 0 else ""
    return CheckpointError(f"the disk is full{lack}", place=str(folder), fix=FIX_FULL)


def free_bytes(folder: Path) -> int | None:
    """Bytes that may still be written; None where the file system does not say."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Writes all of `data`, however little the system takes at once."""
    while len(data):
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count


def sync_folder(folder: Path) -> None:
    """Makes renames and new names in a folder last through a loss of power."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, to last through a loss of power."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
