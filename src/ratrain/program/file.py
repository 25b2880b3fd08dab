"""A program's file, proved; a schedule of PyTorch's as it is written, or as its compute order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ratrain.errors import ProgramError
from ratrain.program.pipelining.cells import Schedule
from ratrain.program.pipelining.check import Check, check
from ratrain.program.pipelining.csv import program_of_schedule
from ratrain.program.pipelining.queues import TIMES
from ratrain.program.pipelining.reading import read_schedule
from ratrain.program.replicas import Unit
from ratrain.program.settled import Proved, proof_of
from ratrain.program.text import read_any
from ratrain.readers import files
from ratrain.readers.limits import PROGRAM_BYTES

SCHEDULE = ".csv"
"""What the file of a PyTorch pipelining schedule ends in."""

DERIVED = "messages: derived from the compute order; the file has none"
NO_BYTES = "not checked: memory, since no bytes were given"


def schedule_of_file(path: Path) -> Schedule:
    """A PyTorch pipelining schedule, as written. An error names the file."""
    return read_schedule(files.read_text(path, PROGRAM_BYTES), str(path))


def proof_of_file(path: Path, times: Mapping[str, float] = TIMES) -> Proved | Check:
    """The proof of a program's text. Of a PyTorch pipelining schedule (.csv) that says what is
    sent, gathered or reduced: what was found of it as written, with these times. Of one that says
    nothing but what is computed: the proof of that order's plain program. An error names the
    file."""
    try:
        if path.suffix == SCHEDULE:
            schedule = schedule_of_file(path)
            if not schedule.computes_only:
                return check(schedule, times)
            return proof_of(program_of_schedule(schedule, Unit("stage")))
        return proof_of(read_any(files.read_text(path, PROGRAM_BYTES), str(path)))
    except ProgramError as error:
        if str(path) in error.place:
            raise
        place = f"{path}, {error.place}" if error.place else str(path)
        raise ProgramError(error.what, place=place, fix=error.fix) from None
