"""A rank's folder of a tier: whose it is while the rank lives, and what a killed one leaves over.

FOLDER/RUN/rank-3/lock             held by the process as long as it lives
FOLDER/RUN/rank-3/optimizer-7      one state: named by what it is, so nothing piles up
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ratrain.errors import SpecError, StorageError
from ratrain.readers import files

LOCK = "lock"


class RankFolder:
    """A rank's own folder; no other process has it until `leave`."""

    def __init__(self, folder: Path, run: str, rank: int) -> None:
        self.path = folder / run / f"rank-{rank}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _taken(self.path / LOCK)
        except OSError as error:
            raise cannot(error, "cannot be made", self.path) from error
        if self._lock is None:
            raise StorageError(
                f"process {_owner(self.path / LOCK)} has the files of rank {rank} there, and still "
                "runs",
                place=str(self.path),
                fix="wait for it, or stop it",
            )
        for path in _states(self.path):  # of one that was killed
            path.unlink()

    def leave(self) -> None:
        """Removes it with all files."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        _remove(self.path)
        os.close(lock)


@dataclass(frozen=True)
class LeftOver:
    """A rank's folder that no process has."""

    path: Path
    size_bytes: int


def left_over(folder: Path) -> list[LeftOver]:
    """What killed ranks have left in a folder of a tier; folders in use are not among it."""
    found: list[LeftOver] = []
    for lock in sorted(folder.glob(f"*/rank-*/{LOCK}")):
        taken = _taken(lock)
        if taken is not None:
            os.close(taken)
            sizes = (path.stat().st_size for path in _states(lock.parent))
            found.append(LeftOver(lock.parent, sum(sizes)))
    return found


def is_tier(folder: Path) -> bool:
    """Whether any rank has, or had, a folder in this one."""
    return any(True for _ in folder.glob(f"*/rank-*/{LOCK}"))


def remove_left_over(folder: Path) -> list[LeftOver]:
    """Removes that, and says what it was."""
    removed: list[LeftOver] = []
    for each in left_over(folder):
        taken = _taken(each.path / LOCK)
        if taken is not None:  # nobody has come back to it meanwhile
            _remove(each.path)
            os.close(taken)
            removed.append(each)
    return removed


def cannot(error: OSError, what: str, place: Path) -> StorageError:
    """The system's error as one of a tier."""
    return StorageError(
        f"{what}: {error.strerror or error}",
        place=str(place),
        fix="give the tier disk another folder: `path` in [[device.tiers]] of the cluster file",
    )


def _taken(lock: Path) -> int | None:
    """The lock's file, held; None where another process holds it."""
    file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    os.ftruncate(file, 0)
    os.pwrite(file, str(os.getpid()).encode(), 0)
    return file


def _owner(lock: Path) -> str:
    with suppress(OSError, SpecError):
        return files.read_text(lock)[:20] or "?"
    return "?"


def _states(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.name != LOCK and path.is_file())


def _remove(folder: Path) -> None:
    """Files first, the lock last; then the folders that are empty."""
    for path in (*_states(folder), folder / LOCK):
        path.unlink(missing_ok=True)
    for empty in (folder, folder.parent):
        with suppress(OSError):
            empty.rmdir()
