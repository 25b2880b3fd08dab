"""How a checkpoint appears: as a partial folder, then by one rename, complete or absent.

    run/checkpoints/step-00000100.partial/    being written; never read
    run/checkpoints/step-00000100/            complete: rank-00000.safetensors, ..., manifest.json
    run/checkpoints/step-00000080.removing/   on its way out; never read

One process of a run calls `begin` and `commit`; every rank writes its own file in between. Where
ranks save to several disks, one process for each disk calls `begin`, then `seal`, and when all have
sealed, `publish`. `commit` is both.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ratrain.checkpoint.disk import free_bytes, make_folder, sync_folder, told, write_at
from ratrain.checkpoint.manifest import NAME, Manifest, Meta, RankRecord, faults, render
from ratrain.errors import CheckpointError
from ratrain.objects.remote import Location, Remote, remote_of
from ratrain.readers.files import exists, read_text
from ratrain.readers.limits import SMALL_BYTES

PARTIAL, REMOVING = ".partial", ".removing"
STEP = re.compile(r"step-(\d{8,})\Z")

CHECKPOINTS = "checkpoints"
URL_MARKER = "url"
"""The file of a run's folder that names the URL below which its checkpoints are."""

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def step_name(step: int) -> str:
    """The folder of a step: 100 -> "step-00000100"."""
    return f"step-{step:08d}"


def step_of(path: Location) -> int | None:
    """The step of a complete checkpoint's folder name; None for any other name."""
    match = STEP.match(path.name)
    return int(match[1]) if match else None


def folder_of(path: Path) -> Path:
    """The folder of checkpoints of a run; the folder itself where it is one already."""
    inner = path / CHECKPOINTS
    return inner if inner.is_dir() else path


def url_of(run: Path) -> Remote | None:
    """The URL of a run whose checkpoints are in an object store."""
    marker = run / URL_MARKER
    if not exists(marker):
        return None
    return remote_of(read_text(marker, SMALL_BYTES).strip(), str(marker))


def location_of(path: Location) -> Location:
    """Where the checkpoints are of a run, or of a folder of them."""
    if isinstance(path, Remote):
        return path
    url = url_of(path.parent if path.name == CHECKPOINTS else path)
    return folder_of(path) if url is None else url / CHECKPOINTS


def leftovers(folder: Path) -> tuple[Path, ...]:
    """Folders of checkpoints being written or removed: by a live process, or by a killed one."""
    unfinished = (path for path in children(folder) if path.suffix in (PARTIAL, REMOVING))
    return tuple(sorted(path for path in unfinished if step_of(path.with_suffix("")) is not None))


def step_begun(path: Location) -> int:
    """The step of a checkpoint that is being written or removed."""
    match = STEP.match(path.name.removesuffix(PARTIAL).removesuffix(REMOVING))
    return int(match[1]) if match else 0


def children(folder: Path) -> Iterator[Path]:
    """What is in a run's or folder's checkpoints."""
    with told(folder, "reading a folder of checkpoints"):
        inner = folder_of(folder)
        yield from inner.iterdir() if inner.exists() else ()


def rank_name(rank: int, once: str = "") -> str:
    """The file that a rank writes; `once`: what no other file's name has."""
    return f"rank-{rank:05d}{once and '.'}{once}.safetensors"


def rank_path(partial: Path, rank: int, once: str = "") -> Path:
    """Where a rank writes."""
    return partial / rank_name(rank, once)


def partial_path(run: Path, step: int) -> Path:
    """The partial folder of a step, which `begin` makes."""
    return run / CHECKPOINTS / (step_name(step) + PARTIAL)


def begin(run: Path, step: int) -> Path:
    """Makes the partial folder of a step and returns it.

    A run writes one checkpoint at a time, so every other partial folder was left by a process
    that died, and is removed.
    """
    partial = partial_path(run, step)
    folder = partial.parent
    with told(folder, "making a checkpoint folder"):
        make_folder(folder)
        for leftover in leftovers(folder):
            discard(leftover)
        partial.mkdir()
    return partial


def commit(partial: Path, records: Sequence[RankRecord], meta: Meta) -> Path:
    """Writes the manifest and renames the folder to its final name, which it returns.

    Refused, and the partial folder removed, unless the records cover every element of every unit
    once, in every kind that they hold. A checkpoint of the same step (damaged, or of a run that
    began again before it) is replaced.
    """
    seal(
        partial, Manifest(meta, time.time(), tuple(sorted(records, key=lambda record: record.file)))
    )
    return publish(partial)


def seal(partial: Path, manifest: Manifest) -> None:
    """Writes the manifest, so that nothing is missing but the name. Refused as `commit` says."""
    try:
        _refuse_unfit(partial, manifest)
        text = manifest_text(manifest, str(partial))
        with told(partial, "writing the manifest", lambda: _missing_bytes(partial, len(text))):
            _write_synced(partial / NAME, text)
            sync_folder(partial)
    except CheckpointError:
        discard(partial)
        raise


def publish(partial: Path) -> Path:
    """Gives a sealed checkpoint its final name, which it returns."""
    final = partial.with_suffix("")
    with told(partial, "renaming a checkpoint"):
        if final.exists():
            _exchange(partial, final)
        else:
            partial.rename(final)
        sync_folder(final.parent)
        discard(partial)
    return final


def discard(path: Path) -> None:
    """Removes a checkpoint's folder, renamed first so that half a folder is never taken for one.

    Another process may remove it too; what cannot be removed stays under a name never read.
    """
    doomed = path.with_name(path.name.removesuffix(REMOVING) + REMOVING)
    try:
        if path != doomed and path.exists():
            shutil.rmtree(doomed, ignore_errors=True)
            path.rename(doomed)
            sync_folder(path.parent)
    except OSError:
        return
    shutil.rmtree(doomed, ignore_errors=True)


def _refuse_unfit(partial: Path, manifest: Manifest) -> None:
    """Raises unless every file is there with its size."""
    step = manifest.meta.step
    if partial.name != step_name(step) + PARTIAL:
        raise CheckpointError(f"is not the partial folder of step {step}", place=str(partial))
    for record in manifest.local_files:
        path = partial / record.file
        with told(path, "reading a checkpoint file"):
            size_bytes = path.stat().st_size
        if size_bytes != record.size_bytes:
            raise CheckpointError(
                f"has {size_bytes} bytes, its rank reported {record.size_bytes}",
                place=str(path),
                fix="let every rank write to the same file system",
            )


def manifest_text(manifest: Manifest, place: str) -> bytes:
    """The manifest's file; raises unless the ranges make whole units."""
    wrong = faults(manifest)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise CheckpointError(
            f"the ranks' ranges do not form a checkpoint: {wrong[0]}{more}",
            place=place,
            fix="let each rank write the ranges it owns, so that each element has one owner",
        )
    try:
        return render(manifest)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"`state` cannot be written as JSON: {error}",
            place=place,
            fix="put only finite numbers, strings, lists and tables in it",
        ) from error


def _write_synced(path: Path, text: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_at(fd, memoryview(text), 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def _missing_bytes(folder: Path, wanted_bytes: int) -> int:
    free = free_bytes(folder)
    return 0 if free is None else wanted_bytes - free


def _exchange(new: Path, old: Path) -> None:
    """Swaps two folders' names in one step, so that at no moment neither has the final name.

    Where the file system cannot (NFS), the old one is renamed away first: a process killed
    between the two renames leaves the step absent.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        names = os.fsencode(new), os.fsencode(old)
        if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
        if ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(new))
    discard(old)
    new.rename(old)
