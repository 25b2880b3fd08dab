"""How a rank's end is reported: in words, in the run's folder, with how likely it is the first
cause.

A rank that fails writes `ranks/failure-RANK.json`. One that is killed writes nothing: its exit
status tells. When one has ended, the others lose their connections and the launcher ends them.
`run/first_cause.py` says which failure came first.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ratrain.describe.amounts import Message, Note
from ratrain.describe.strict import load
from ratrain.errors import DeadlineExceeded, PeerDown, RatrainError, SpecError
from ratrain.readers.files import unwritable
from ratrain.readers.json import read_json_table
from ratrain.readers.writing import write_whole
from ratrain.runtime.run_folder import RunFolder

CAUSE, SILENCE, CONSEQUENCE, ENDED = range(4)
"""How likely something is the first cause: it is; a peer was silent; a peer was gone; the launcher
ended the rank because another one failed."""

_LOOK_S = 0.1


@dataclass(frozen=True)
class Failure:
    """How a rank ended, in words."""

    rank: int
    what: Message
    place: Message = ""
    fix: Message = ""
    order: int = CAUSE
    kind: Note = ""  # the class of the error


def tell(folder: RunFolder, rank: int, error: BaseException) -> int:
    """Leaves a rank's failure in the run's folder, or where that cannot be written, in its log;
    the exit status."""
    failure = worded(error, rank)
    path = folder.rank_file(rank, "failure")
    try:
        write_whole(path, json.dumps(asdict(failure)))
    except (OSError, RatrainError) as problem:
        why = problem.what if isinstance(problem, RatrainError) else problem
        said = f"{failure.place}: {failure.what}" if failure.place else failure.what
        with suppress(OSError):  # the log may be on the same disk
            print(f"{said} ({path} cannot be written: {why})", file=sys.stderr, flush=True)
    return status_of(error)


def status_of(error: BaseException) -> int:
    """The exit status of a rank that ends with this error."""
    return error.exit_code if isinstance(error, RatrainError) else 1


def worded(error: BaseException, rank: int) -> Failure:
    """An error as a `Failure`; torch's about lost and silent peers in plain words."""
    if isinstance(error, RatrainError):
        order = CONSEQUENCE if isinstance(error, PeerDown) else CAUSE
        order = SILENCE if isinstance(error, DeadlineExceeded) else order
        if "folder is gone" in error.what:  # another rank gave a checkpoint up
            order = CONSEQUENCE
        return Failure(rank, error.what, error.place, error.fix, order, type(error).__name__)
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    low = text.lower()
    if "timed out waiting" in low or "wait timeout" in low:
        silence_s = "".join(c for c in low.split("timed out waiting", 1)[-1][:12] if c.isdigit())
        so_long = f" for {int(silence_s) / 1000:g} s" if silence_s else ""
        return Failure(
            rank,
            f"rank {rank} received nothing from another rank{so_long}",
            fix="check whether a rank or a link has stalled; [train] timeout sets how long to wait",
            order=SILENCE,
        )
    if any(phrase in low for phrase in ("closed by peer", "connection re", "broken pipe")):
        problem = f"rank {rank} lost its connection to another rank"
        return Failure(rank, problem, fix="check why that rank ended", order=CONSEQUENCE)
    if isinstance(error, OSError) and isinstance(error.filename, (str, bytes)):
        path = os.fsdecode(error.filename)
        return worded(unwritable(path, error, "the system does not allow it"), rank)
    return Failure(rank, f"{type(error).__name__}: {text}")


def read_failure(path: Path) -> Failure:
    """What a rank has left in its file."""
    return load(Failure, *read_json_table(path))


def first_told(folder: RunFolder, patience_s: float) -> Failure | None:
    """A first cause that some rank has left in the folder, or leaves there soon."""
    end_s = time.monotonic() + patience_s
    while True:
        for path in sorted((folder.path / "ranks").glob("failure-*.json")):
            try:
                failure = read_failure(path)
            except SpecError:  # it is being written
                continue
            if failure.order == CAUSE:
                return failure
        if time.monotonic() > end_s:
            return None
        time.sleep(_LOOK_S)
