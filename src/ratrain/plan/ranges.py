"""Lists of numbers as people write them: "0-2, 7"."""

from __future__ import annotations

from collections.abc import Sequence

from ratrain.errors import SpecError
from ratrain.readers.numbers import is_number


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


def runs(values: Sequence[object]) -> str:
    """ "4 x 15, 3": equal neighbours counted."""
    counts: list[tuple[object, int]] = []
    for value in values:
        if counts and counts[-1][0] == value:
            counts[-1] = value, counts[-1][1] + 1
        else:
            counts.append((value, 1))
    return ", ".join(f"{value} x {count}" if count > 1 else f"{value}" for value, count in counts)
