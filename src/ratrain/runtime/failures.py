"""How a run ended: what each rank said or died of, and which of that was the first cause.

A rank that fails writes `ranks/failure-RANK.json`. One that is killed writes nothing: its exit
status tells. When one has ended, the others lose their connections and the launcher ends them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass

from ratrain.describe.units import format_bytes
from ratrain.errors import DeadlineExceeded, PeerDown, RatrainError, RunFailed
from ratrain.lab.cluster import Lab
from ratrain.runtime.run_folder import RunFolder
from ratrain.timeline.timeline import write_whole

CAUSE, SILENCE, CONSEQUENCE, ENDED = range(4)
"""How likely something is the first cause: it is; a peer was silent; a peer was gone; the launcher
ended the rank because another one failed."""

_FULL_BYTES = 1 << 16


@dataclass(frozen=True)
class Failure:
    """How a rank ended, in words."""

    rank: int
    what: str
    place: str = ""
    fix: str = ""
    order: int = CAUSE


def tell(folder: RunFolder, rank: int, error: BaseException) -> int:
    """Leaves a rank's failure in the run's folder, or where that cannot be written, in its log;
    the exit status."""
    found = worded(error, rank)
    path = folder.rank_file(rank, "failure")
    try:
        write_whole(path, json.dumps(asdict(found)))
    except (OSError, RatrainError) as problem:
        print(f"{path} cannot be written ({problem}): {found.what}", file=sys.stderr, flush=True)
    return error.exit_code if isinstance(error, RatrainError) else 1


def worded(error: BaseException, rank: int) -> Failure:
    """An error as a `Failure`; torch's about lost and silent peers in plain words."""
    if isinstance(error, RatrainError):
        order = CONSEQUENCE if isinstance(error, PeerDown) else CAUSE
        order = SILENCE if isinstance(error, DeadlineExceeded) else order
        if "folder is gone" in error.what:  # another rank gave a checkpoint up
            order = CONSEQUENCE
        return Failure(rank, error.what, error.place, error.fix, order)
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    low = text.lower()
    if "timed out waiting" in low or "wait timeout" in low:
        silence_s = "".join(c for c in low.split("timed out waiting", 1)[-1][:12] if c.isdigit())
        so_long = f" for {int(silence_s) / 1000:g} s" if silence_s else ""
        return Failure(
            rank,
            f"rank {rank} heard nothing from another rank{so_long}",
            fix="see whether a rank or a link stands still; [train] timeout says how long to wait",
            order=SILENCE,
        )
    if any(word in low for word in ("closed by peer", "connection re", "broken pipe")):
        what = f"rank {rank} lost its connection to another rank"
        return Failure(rank, what, fix="see what ended that rank", order=CONSEQUENCE)
    return Failure(rank, f"{type(error).__name__}: {text}")


def explained(
    folder: RunFolder, error: BaseException, lab: Lab | None, stopped: Collection[int]
) -> RatrainError:
    """The first cause of a failure, rather than what followed from it on other ranks. `stopped`:
    ranks that the launcher found standing still."""
    failures = _failures(folder, error, lab, stopped)
    saved = sorted(path.name for path in folder.checkpoints.glob("step-*[0-9]"))
    goes_on = f"; `--resume` goes on behind {saved[-1]}" if saved else ""
    if not failures:
        because = f" ({_first_line(error.__cause__)})" if error.__cause__ else ""
        return RunFailed(
            f"the ranks could not be started: {_first_line(error)}{because}",
            place=str(folder.path),
            fix="see that this machine reaches its own address: the loopback interface, 127.0.0.1, "
            f"or the lab's; the logs are in {folder.logs}{goes_on}",
        )
    first = min(failures, key=lambda failure: failure.order)
    others = sorted(failure.rank for failure in failures if failure is not first)
    what = first.what
    if others:
        what += f"; after it rank{'s' if len(others) > 1 else ''} " + ", ".join(map(str, others))
        what += " ended too"
    fix = (first.fix or f"see {folder.logs}") + goes_on
    place = first.place or f"rank {first.rank}"
    if what.startswith(place):  # the message names the rank itself
        place = str(folder.path)
    return RunFailed(what, place=place, fix=fix)


def _failures(
    folder: RunFolder, error: BaseException, lab: Lab | None, stopped: Collection[int]
) -> list[Failure]:
    found = {
        rank: Failure(rank, f"rank {rank} stood still: something had stopped its process")
        for rank in stopped
    }
    for path in sorted((folder.path / "ranks").glob("failure-*.json")):
        body = folder.read_json(path)
        found.setdefault(body["rank"], Failure(**body))
    for rank, failed in getattr(error, "failures", {}).items():
        code = int(getattr(failed, "exitcode", 1))
        if rank not in found:
            found[rank] = _killed(rank, -code, lab) if code < 0 else _silent(folder, rank, code)
    return [found[rank] for rank in sorted(found)]


def _killed(rank: int, number: int, lab: Lab | None) -> Failure:
    if lab is not None and lab.oom_kills(rank):
        what = f"rank {rank} was killed by the kernel: its memory limit was reached"
        return Failure(rank, what, fix="raise [device.lab] overhead, or plan with a smaller budget")
    name = signal.Signals(number).name
    order = ENDED if number == signal.SIGTERM else CAUSE
    return Failure(rank, f"rank {rank} was killed by {name}", order=order)


def _silent(folder: RunFolder, rank: int, code: int) -> Failure:
    """A rank that could not say what was wrong: most often there was no room to write it."""
    room = os.statvfs(folder.path)
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < _FULL_BYTES:
        return Failure(
            rank,
            f"rank {rank} ended: the disk is full, {format_bytes(free_bytes)} are free",
            place=str(folder.path),
            fix="free some space",
        )
    return Failure(rank, f"rank {rank} ended with status {code} and said nothing")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
