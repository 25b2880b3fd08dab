"""Which checkpoints a folder holds, which is the latest, and the removal of old ones.

"Whole" here means: the manifest and every file's header match their checksums and every file
has its size. The tensors' own checksums are verified as they are read, or by `verify`. Of a
checkpoint that was saved to several disks, only the files that were written to this one must be
there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ratrain.checkpoint.best import read_best
from ratrain.checkpoint.folder import (
    REMOVING,
    children,
    discard,
    leftovers,
    location_of,
    step_begun,
    step_of,
)
from ratrain.checkpoint.manifest import NAME, Damage, Manifest, RankRecord, parse
from ratrain.checkpoint.remote import discard_remote, read_remote, steps_in
from ratrain.errors import CannotResume, CheckpointError, SpecError
from ratrain.objects.client import stores
from ratrain.objects.remote import Location, Remote
from ratrain.readers.files import exists, read_at, read_bytes
from ratrain.readers.limits import TIMELINE_BYTES


@dataclass(frozen=True)
class Listed:
    """One folder of checkpoints/: whole where it has a manifest, else `problem` says why not."""

    path: Location
    step: int
    manifest: Manifest | None
    problem: str

    @property
    def elsewhere(self) -> tuple[RankRecord, ...]:
        """Its files that are on other disks only."""
        return absent(self.path, self.manifest) if self.manifest else ()


@dataclass(frozen=True)
class Latest:
    """The newest whole checkpoint, and the damaged ones after it that were passed over."""

    path: Location
    skipped: tuple[Listed, ...] = ()


def listed(folder: Location) -> tuple[Listed, ...]:
    """The checkpoints under their final names, oldest first, whole or damaged."""
    folder = location_of(folder)
    if isinstance(folder, Remote):
        steps_there = steps_in(folder).items()
        return tuple(_look(path, sizes) for path, sizes in steps_there if NAME in sizes)
    steps = sorted((step, path) for path in children(folder) if (step := step_of(path)) is not None)
    looked = [(path, _look(path)) for _, path in steps]
    # One that a run removes meanwhile is not damaged: it is gone.
    return tuple(each for path, each in looked if each.manifest is not None or exists(path))


def listed_at(path: Path) -> tuple[Listed, ...]:
    """The same of whatever a user points at: a run, a folder, or one checkpoint."""
    if not exists(path) or not path.is_dir():
        raise CheckpointError("no such folder", place=str(path), fix="give the run's folder")
    return listed(path) if step_of(path.resolve()) is None else (_look(path.resolve()),)


def checkpoint_at(path: Path) -> Location:
    """The one checkpoint that a user names: itself, or the latest one of a run or folder."""
    if exists(path / NAME) or step_of(path.resolve()) is not None:
        return path
    listed_at(path)  # names a folder that is not there
    newest = latest(path)
    if newest is None:
        raise CheckpointError(
            "holds no checkpoint", place=str(path), fix="give a checkpoint, or a run that has one"
        )
    return newest.path


def latest(folder: Location, skip_damaged: bool = False) -> Latest | None:
    """The newest checkpoint of a run or folder; None where none was completed.

    A damaged newest one is an error that names the one before it; with `skip_damaged` it is
    passed over, and `skipped` says so. Where all are damaged that is an error too.
    """
    skipped: list[Listed] = []
    for checkpoint in reversed(listed(folder)):
        if checkpoint.manifest is not None:
            return Latest(checkpoint.path, tuple(skipped))
        skipped.append(checkpoint)
        if not skip_damaged:
            raise damaged(checkpoint.path, checkpoint.problem)
    if skipped:
        raise none_whole(
            folder, [f"{checkpoint.path.name}: {checkpoint.problem}" for checkpoint in skipped]
        )
    return None


def none_whole(folder: Location, problems: list[str]) -> CannotResume:
    """The error of a run whose checkpoints are all damaged; `problems` are theirs, newest first."""
    place = location_of(folder)
    which = "the only one is" if len(problems) == 1 else f"all {len(problems)} are"
    return CannotResume(
        f"there is no checkpoint to resume from: {which} damaged: {problems[0]}",
        place=str(place),
        fix=f"replace it with an intact copy; to start again from step 0, move {place} away",
    )


def prune(folder: Path, keep: int, upto: int | None = None) -> tuple[Location, ...]:
    """Removes all but the newest `keep` whole checkpoints, oldest first; returns what it removed.

    Never the newest whole one, nor the best one (`best.py`). A damaged one goes when it is older
    than all that are kept. So do partial folders no newer than the newest whole one: their writers
    are gone. What is newer than step `upto` neither counts nor goes: a run that resumed from an
    older checkpoint, because the newest was damaged, must not lose what it saves now to that one.
    """
    checkpoints = listed(folder)
    whole = [
        checkpoint.step
        for checkpoint in checkpoints
        if checkpoint.manifest is not None and (upto is None or checkpoint.step <= upto)
    ]
    begun = unfinished(folder)
    removed: list[Location] = [path for path in begun if _is_going(path)]
    if whole:
        oldest_kept, best = whole[-min(max(keep, 1), len(whole))], read_best(folder)
        removed += [
            checkpoint.path
            for checkpoint in checkpoints
            if checkpoint.step < oldest_kept and not (best and checkpoint.step == best.step)
        ]
        removed += [path for path in begun if not _is_going(path) and step_begun(path) <= whole[-1]]
    for path in removed:
        if isinstance(path, Remote):
            discard_remote(stores(), path)
        else:
            discard(path)
    return tuple(removed)


def unfinished(folder: Path) -> tuple[Location, ...]:
    """Checkpoints being written or removed: by a live process, or by a killed one."""
    location = location_of(folder)
    if isinstance(location, Remote):
        return tuple(path for path, sizes in steps_in(location).items() if NAME not in sizes)
    return leftovers(location)


def _is_going(path: Location) -> bool:
    return path.name.endswith(REMOVING)


def absent(path: Location, manifest: Manifest) -> tuple[RankRecord, ...]:
    """Files of a checkpoint's manifest that are not in its folder."""
    if manifest.spread is None or isinstance(path, Remote):
        return ()
    return tuple(file for file in manifest.files if not (path / file.file).exists())


def read_manifest(path: Location) -> Manifest:
    """The manifest of a checkpoint that is whole; else an error that names the one before it."""
    try:
        return _whole(path)
    except Damage as damage:
        raise damaged(path, str(damage)) from damage


def damaged(path: Location, problem: str) -> CheckpointError:
    """The error of a damaged checkpoint; its fix is the newest whole one before it."""
    step = step_of(path)
    before = [
        checkpoint.path.name
        for checkpoint in (listed(path.parent) if step is not None else ())
        if checkpoint.manifest is not None and step is not None and checkpoint.step < step
    ]
    fix = "replace it with an intact copy; no earlier one is intact"
    if before:
        fix = f"use {before[-1]}, the one before it is complete"
    return CheckpointError(problem, place=str(path), fix=fix)


def _look(path: Location, sizes: Mapping[str, int] | None = None) -> Listed:
    """A step; `sizes` of its objects, where it is in a store and they are known."""
    step = step_of(path) or 0
    try:
        return Listed(path, step, _whole(path, sizes), "")
    except Damage as damage:
        return Listed(path, step, None, str(damage))


def _whole(path: Location, sizes: Mapping[str, int] | None = None) -> Manifest:
    """The manifest, where every file has its size and header; `Damage` names the file else."""
    if isinstance(path, Remote):
        return read_remote(path, sizes)
    try:
        if not exists(path / NAME):
            inside = path.is_dir()
            raise Damage("is missing" if inside else f"is missing: {path.name} is not a checkpoint")
        manifest = parse(read_bytes(path / NAME, TIMELINE_BYTES))
    except SpecError as error:
        raise Damage(f"{NAME} {error.what}") from error
    except Damage as damage:
        raise Damage(f"{NAME} {damage}") from damage
    step = step_of(path)
    if step is not None and step != manifest.meta.step:
        raise Damage(f"{NAME} is of step {manifest.meta.step}")
    local = {record.file for record in manifest.local_files}
    elsewhere = {record.file for record in absent(path, manifest)} - local
    for record in manifest.files:
        problem = "" if record.file in elsewhere else _file_problem(path / record.file, record)
        if problem:
            raise Damage(f"{record.file} {problem}")
    return manifest


def _file_problem(path: Path, record: RankRecord) -> str:
    """What is wrong with a rank's file, seen from its size and header; "" if nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes != record.size_bytes:
            return f"has {size_bytes} bytes instead of {record.size_bytes}"
        header = bytearray(record.header_bytes)
        read_at(fd, memoryview(header), 0)
        altered = sha256(header).hexdigest() != record.header_sha256
        return "is altered: its header does not match its checksum" if altered else ""
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    finally:
        os.close(fd)
