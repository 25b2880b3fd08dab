"""Which checkpoints a folder holds, which is the latest, and the removal of old ones.

"Whole" here means: the manifest and every file's header match their checksums and every file
has its size. The tensors' own checksums are verified as they are read, or by `verify`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ratrain.checkpoint.disk import read_at
from ratrain.checkpoint.folder import PARTIAL, REMOVING, children, discard, leftovers, step_of
from ratrain.checkpoint.manifest import NAME, Damage, Manifest, RankRecord, parse
from ratrain.errors import CheckpointError


@dataclass(frozen=True)
class Listed:
    """One folder of checkpoints/: whole where it has a manifest, else `problem` says why not."""

    path: Path
    step: int
    manifest: Manifest | None
    problem: str


@dataclass(frozen=True)
class Latest:
    """The newest whole checkpoint, and the damaged ones after it that were passed over."""

    path: Path
    skipped: tuple[Listed, ...] = ()


def listed(folder: Path) -> tuple[Listed, ...]:
    """The checkpoints under their final names, oldest first, whole or damaged."""
    steps = sorted((step, path) for path in children(folder) if (step := step_of(path)) is not None)
    return tuple(_look(path, step) for step, path in steps)


def listed_at(path: Path) -> tuple[Listed, ...]:
    """The same of whatever a user points at: a run, a folder, or one checkpoint."""
    if not path.is_dir():
        raise CheckpointError("no such folder", place=str(path), fix="name the run's folder")
    step = step_of(path.resolve())
    return listed(path) if step is None else (_look(path, step),)


def latest(folder: Path, skip_damaged: bool = False) -> Latest | None:
    """The newest checkpoint of a run or folder; None where none was completed.

    A damaged newest one is an error that names the one before it; with `skip_damaged` it is
    passed over, and `skipped` says so.
    """
    skipped: list[Listed] = []
    for one in reversed(listed(folder)):
        if one.manifest is not None:
            return Latest(one.path, tuple(skipped))
        skipped.append(one)
        if not skip_damaged:
            raise damaged(one.path, one.problem)
    if skipped:
        raise damaged(skipped[0].path, skipped[0].problem)
    return None


def prune(folder: Path, keep: int) -> tuple[Path, ...]:
    """Removes all but the newest `keep` whole checkpoints, oldest first; returns what it removed.

    Never the newest whole one. A damaged one goes when it is older than all that are kept. So do
    partial folders no newer than the newest whole one: their writers are gone.
    """
    found = listed(folder)
    whole = [one.step for one in found if one.manifest is not None]
    removed = [path for path in leftovers(folder) if path.suffix == REMOVING]
    if whole:
        oldest_kept = whole[-min(max(keep, 1), len(whole))]
        removed += [one.path for one in found if one.step < oldest_kept]
        removed += [
            path
            for path in leftovers(folder)
            if path.suffix == PARTIAL and (step_of(path.with_suffix("")) or 0) <= whole[-1]
        ]
    for path in removed:
        discard(path)
    return tuple(removed)


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint that is whole; else an error that names the one before it."""
    try:
        return _whole(path)
    except Damage as damage:
        raise damaged(path, str(damage)) from damage


def damaged(path: Path, problem: str) -> CheckpointError:
    """The error of a damaged checkpoint; its fix is the newest whole one before it."""
    step = step_of(path)
    before = [
        one.path.name
        for one in (listed(path.parent) if step is not None else ())
        if one.manifest is not None and step is not None and one.step < step
    ]
    fix = (
        f"use {before[-1]}, the one before it is complete" if before else "no earlier one is whole"
    )
    return CheckpointError(problem, place=str(path), fix=fix)


def _look(path: Path, step: int) -> Listed:
    try:
        return Listed(path, step, _whole(path), "")
    except Damage as damage:
        return Listed(path, step, None, str(damage))


def _whole(path: Path) -> Manifest:
    """The manifest, where every file has its size and header; `Damage` names the file else."""
    try:
        manifest = parse((path / NAME).read_bytes())
    except FileNotFoundError:
        what = "is missing" if path.is_dir() else f"is missing: {path.name} is no checkpoint"
        raise Damage(f"{NAME} {what}") from None
    except OSError as error:
        raise Damage(f"{NAME} cannot be read: {error.strerror}") from error
    except Damage as damage:
        raise Damage(f"{NAME} {damage}") from damage
    step = step_of(path)
    if step is not None and step != manifest.meta.step:
        raise Damage(f"{NAME} is of step {manifest.meta.step}")
    for record in manifest.files:
        problem = _file_problem(path / record.file, record)
        if problem:
            raise Damage(f"{record.file} {problem}")
    return manifest


def _file_problem(path: Path, record: RankRecord) -> str:
    """What is wrong with a rank's file, seen from its size and header; "" if nothing."""
    try:
        fd = os.open(path, os.O_RDONLY)
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
