"""Lists of numbers as people write them: "0-2, 7"."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TypeVar

from ratrain.errors import SpecError
from ratrain.readers.numbers import is_number

T = TypeVar("T")


def write_ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 7] -> "0-2, 7". Order is kept."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)


Nouns = tuple[str, str]
"""What numbers are of: one, and several."""
DEVICES: Nouns = ("device", "devices")
RANKS: Nouns = ("rank", "ranks")
STAGES: Nouns = ("stage", "stages")


def read_ranges(text: str, place: str, limit: int, of: Nouns = DEVICES) -> list[int]:
    """ "0-2, 7" -> [0, 1, 2, 7]; numbers from 0 to limit - 1."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (is_number(first) and is_number(last or first)):
            raise SpecError(
                f"{part!r} is not a {of[0]}", place=place, fix='write it like "0-7, 16"'
            )
        begin, end = int(first), int(last or first)
        if end >= limit or end < begin:
            raise SpecError(
                f"{part.strip()!r} is not among {of[1]} 0 to {limit - 1}",
                place=place,
                fix=f'write it like "0-{limit - 1}"',
            )
        numbers += range(begin, end + 1)
    return numbers


def write_list(values: Sequence[object], of: Nouns) -> str:
    """ "9, 9, 4, 2", or of many, equal neighbours counted: "15 stages of 4, 1 of 3"."""
    if len(values) <= _LISTED:
        return ", ".join(map(str, values))
    (value, count), *rest = _alike(values)
    first = f"{count} {of[count > 1]} of {value}"
    return ", ".join([first, *(f"{count} of {value}" for value, count in rest)])


_LISTED = 8
"""Values up to which each one is written."""


def write_degrees(degrees: Sequence[int]) -> str:
    """Tensor degrees of ranks: "2" where all have the same, else as `write_list`."""
    return str(degrees[0]) if len(set(degrees)) == 1 else write_list(degrees, RANKS)


def write_kinds(names: Sequence[str]) -> str:
    """ "fast-rank, 2 x slow-rank": equal neighbours counted."""
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in _alike(names))


def _alike(values: Sequence[T]) -> list[tuple[T, int]]:
    """Values with the number of equal neighbours."""
    return [(value, len(list(group))) for value, group in groupby(values)]
