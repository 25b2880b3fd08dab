"""JSON lines: one table a line, read line by line, so that no file has to fit in memory."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratrain.errors import SpecError
from ratrain.readers.files import check_name, check_regular, unreadable
from ratrain.readers.json import as_table, parse_json
from ratrain.readers.limits import LINE_BYTES
from ratrain.readers.place import Place

_NUMBER = re.compile(r"\.|[eE][+-]?|-")
"""What is left of a number that ends too early, behind what already is one."""
_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")


def read_json_lines(
    path: Path, *, half: bool = False, finite: bool = True
) -> Iterator[tuple[dict[str, Any], Place]]:
    """Each line's table and its place; blank lines are none. With `half` a line that ends too
    early, as a killed process may leave it, is passed over. `finite`: see `parse_json`."""
    for number, line in numbered_lines(path):
        check_line(line, str(path), number)
        if line.strip() and not (half and is_half(line)):
            yield parse_line(line, str(path), number, finite=finite)


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file and their numbers from 1, whatever they hold; one that is too long comes
    in parts, the first of which `check_line` refuses."""
    check_name(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            check_regular(path, status.st_mode)
            remaining = status.st_size  # what is written meanwhile is left for another time
            number = 0
            while remaining > 0 and (line := file.readline(min(remaining, LINE_BYTES + 1))):
                remaining -= len(line)
                number += 1
                yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    except OSError as error:
        raise unreadable(path, error) from error


def is_half(line: bytes) -> bool:
    """Whether a line is the beginning of one of JSON, and no more."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        rest = error.doc[error.pos :].strip()
        cut = _NUMBER.fullmatch(rest) or any(word.startswith(rest) for word in _WORDS)
        return error.msg.startswith("Unterminated") or bool(cut)
    except (ValueError, RecursionError):
        return False
    return False


def check_line(line: bytes, file: str, number: int) -> None:
    """A SpecError for a line that is too long to be one."""
    if len(line) > LINE_BYTES:
        raise SpecError(
            f"longer than {LINE_BYTES:,} bytes",
            place=f"{file}:{number}",
            fix="write one JSON table per line",
        )


def parse_line(
    line: bytes, file: str, number: int, *, finite: bool = True
) -> tuple[dict[str, Any], Place]:
    """The table of one line of a file."""
    return as_table(*parse_json(line, file, number, finite=finite))


def end_last_line(path: Path) -> None:
    """Ends a file of lines with a line feed: a process that was killed may have left half a line,
    which must not run into the next one."""
    with path.open("rb+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
