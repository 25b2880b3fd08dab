"""What is saved has its name on the disk before anyone is told so: a rename, a link or a new folder
that its folder was not flushed after may be gone after a loss of power."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_made import UNITS, evenly, write_ranks
from test_given_kill import trained

from ratrain.checkpoint.best import Best, write_best
from ratrain.checkpoint.folder import begin, commit
from ratrain.checkpoint.manifest import Meta

Identity = tuple[int, int]


def identity(path: Path | int) -> Identity:
    status = os.fstat(path) if isinstance(path, int) else path.stat()
    return status.st_dev, status.st_ino


class Recorded:
    """What is asked of the file system, which does it: names made in folders, and flushes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
        self.named: list[tuple[int, Path]] = []
        self.flushed: list[tuple[int, Identity]] = []
        self._time = 0
        for name in names:
            monkeypatch.setattr(os, name, self._naming(getattr(os, name)))
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._flushing(getattr(os, name)))

    def _next(self) -> int:
        self._time += 1
        return self._time

    def _naming(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: object, **more: object) -> None:
            real(*args, **more)
            old, *new = [Path(each) for each in args if isinstance(each, str | Path)]
            if new and real.__name__ != "link":  # what lies in a folder goes with it
                self.named = [(time, _moved(path, old, new[0])) for time, path in self.named]
            self.named.append((self._next(), new[0] if new else old))

        return call

    def _flushing(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def call(file: int) -> None:
            real(file)
            self.flushed.append((self._next(), identity(file)))

        return call

    def lost(self, within: Path) -> list[str]:
        """Names in a folder, and what they name, that a loss of power may take."""
        lost: list[str] = []
        for at, path in self.named:
            if within not in path.parents or not path.exists():
                continue  # it was of no importance, and is gone
            folder, own = identity(path.parent), identity(path)
            if not any(time > at and what == folder for time, what in self.flushed):
                lost.append(f"the name {path.relative_to(within)}")
            if stat.S_ISREG(path.stat().st_mode) and own not in {what for _, what in self.flushed}:
                lost.append(f"what is in {path.relative_to(within)}")
        return lost


def _moved(path: Path, old: Path, new: Path) -> Path:
    return new / path.relative_to(old) if path.is_relative_to(old) else path


def save_checkpoint(run: Path) -> None:
    partial = begin(run, 1)
    records = write_ranks(partial, 1, evenly(UNITS, 2))
    commit(partial, records, Meta(1, "tiny", "c0ffee", UNITS, {}))


def save_best(run: Path) -> None:
    save_checkpoint(run)
    write_best(run, Best(1, 0.5))


def take_files(run: Path) -> None:
    trained(run, 1, 2)


def save_graph(run: Path) -> None:
    torch = pytest.importorskip("torch")
    from ratrain.graph.saved import Saved, save

    save(run / "checkpoints", Saved(1, {"w": torch.zeros(3)}, "a graph"), 2)


NAMES = ("rename", "replace", "link", "mkdir")
SAVERS = [save_checkpoint, save_best, take_files, save_graph]


@pytest.mark.parametrize("saver", SAVERS)
def test_names_of_what_is_saved_are_flushed_with_what_they_name(
    saver: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(monkeypatch, NAMES)
    saver(tmp_path / "run")
    monkeypatch.undo()
    assert (tmp_path / "run" / "checkpoints") in {path for _, path in recorded.named}
    saved = [path for _, path in recorded.named if path.parent.name == "checkpoints"]
    assert saved
    assert recorded.lost(tmp_path / "run") == []


@pytest.mark.parametrize("saver", SAVERS)
def test_a_folder_that_is_not_flushed_is_found(
    saver: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without flushes of folders: so the other test would see it."""
    recorded = Recorded(monkeypatch, NAMES)
    real = os.fsync

    def files_alone(file: int) -> None:
        if not stat.S_ISDIR(os.fstat(file).st_mode):
            real(file)

    monkeypatch.setattr(os, "fsync", files_alone)
    saver(tmp_path / "run")
    monkeypatch.undo()
    assert recorded.lost(tmp_path / "run")
