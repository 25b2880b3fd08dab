"""A program's file, proved."""

from __future__ import annotations

from pathlib import Path

from ratrain.errors import ProgramError
from ratrain.program.csv import program_of_csv
from ratrain.program.replicas import Unit
from ratrain.program.settled import Proved, proof_of
from ratrain.program.text import read_any
from ratrain.readers import files
from ratrain.readers.limits import PROGRAM_BYTES


def proof_of_file(path: Path) -> Proved:
    """The proof of a program's text, or of the compute order of a PyTorch pipelining schedule
    (.csv). An error names the file."""
    text = files.read_text(path, PROGRAM_BYTES)
    try:
        if path.suffix == ".csv":
            return proof_of(program_of_csv(text, Unit("stage"), str(path)))
        return proof_of(read_any(text, str(path)))
    except ProgramError as error:
        if str(path) in error.place:
            raise
        place = f"{path}, {error.place}" if error.place else str(path)
        raise ProgramError(error.what, place=place, fix=error.fix) from None
