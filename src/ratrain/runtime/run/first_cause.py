"""Why a run ended: the first cause among all that ranks reported or died of."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from ratrain.checkpoint.disk import free_bytes
from ratrain.checkpoint.listing import latest
from ratrain.describe.units import format_bytes
from ratrain.errors import (
    CannotResume,
    CheckpointError,
    RatrainError,
    RunFailed,
    SavedElsewhere,
    SpecError,
)
from ratrain.lab.cluster import Lab
from ratrain.readers.files import NO_MORE_FILES, REMOVE_FILES, read_text, takes_no_more_files
from ratrain.runtime.failures import CAUSE, ENDED, Failure, read_failure
from ratrain.runtime.run.processes import RankEnd
from ratrain.runtime.run_folder import RunFolder, RunSpec

_FULL_BYTES = 1 << 16


def explained(
    folder: RunFolder, spec: RunSpec, ends: Sequence[RankEnd], lab: Lab | None
) -> RatrainError:
    """The first cause of a failure, rather than what followed from it on other ranks. `ends`: how
    each rank ended, by rank."""
    failures = [_failure(folder, spec, end, lab) for end in ends if end.status]
    first = min(failures, key=lambda failure: failure.order)
    # What all ranks refuse together they say in the same words.
    later_ranks = sorted(failure.rank for failure in failures if failure.what != first.what)
    problem = first.what
    if later_ranks:
        problem += f"; after it rank{'s' if len(later_ranks) > 1 else ''} " + ", ".join(
            map(str, later_ranks)
        )
        problem += " ended too"
    place = first.place or f"rank {first.rank}"
    if problem.startswith(place):  # the message names the rank itself
        place = str(folder.path)
    if first.kind in (CannotResume.__name__, SavedElsewhere.__name__):
        return CannotResume(problem, place=place, fix=first.fix)
    kind = CheckpointError if first.kind == CheckpointError.__name__ else RunFailed
    fix = (first.fix or f"see {folder.log(first.rank)}") + _resume_words(folder)
    return kind(problem, place=place, fix=fix)


def _resume_words(folder: RunFolder) -> str:
    """Where `--resume` would begin, in words; "" where nothing whole was saved."""
    try:
        saved = latest(folder.checkpoints, skip_damaged=True)
    except CheckpointError:
        return ""
    return f"; `--resume` resumes from {saved.path.name}" if saved else ""


def _failure(folder: RunFolder, spec: RunSpec, end: RankEnd, lab: Lab | None) -> Failure:
    rank = end.rank
    if end.stood_still:
        return Failure(rank, f"rank {rank} stalled: its process had been stopped")
    path = folder.rank_file(rank, "failure")
    if path.exists():
        try:
            return read_failure(path)
        except SpecError as error:
            problem = f"rank {rank} ended, and what it said of it cannot be read: {error.what}"
            return Failure(rank, problem, place=error.place, fix=f"see {folder.log(rank)}")
    return _killed(spec, end, lab) if end.status < 0 else _silent(folder, rank, end.status)


def _killed(spec: RunSpec, end: RankEnd, lab: Lab | None) -> Failure:
    if lab is not None and lab.oom_kills(spec.device_numbers[end.rank]):
        problem = f"rank {end.rank} was killed by the kernel: its memory limit was reached"
        return Failure(
            end.rank, problem, fix="raise [device.lab] overhead, or plan with a smaller budget"
        )
    name = signal.Signals(-end.status).name
    order = ENDED if end.ended_here else CAUSE
    return Failure(end.rank, f"rank {end.rank} was killed by {name}", order=order)


def _silent(folder: RunFolder, rank: int, code: int) -> Failure:
    """A rank that could not say what was wrong: most often there was no room to write it."""
    free = free_bytes(folder.path)
    if free is not None and free < _FULL_BYTES:
        return Failure(
            rank,
            f"rank {rank} ended: the disk is full, {format_bytes(free)} is free",
            place=str(folder.path),
            fix="free some space",
        )
    if takes_no_more_files(folder.path):
        problem = f"rank {rank} ended: {NO_MORE_FILES}"
        return Failure(rank, problem, place=str(folder.path), fix=REMOVE_FILES)
    last = _last_line(folder.log(rank))
    problem = f"rank {rank} ended with status {code} and left no message; its log ends: {last}"
    return Failure(rank, problem, place=str(folder.log(rank)))


def _last_line(log: Path) -> str:
    """Of what a rank printed."""
    try:
        lines = read_text(log).split("\n")
    except SpecError as error:
        return error.what
    return next((line for line in reversed(lines) if line.strip()), "nothing")
