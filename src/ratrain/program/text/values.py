"""The values in a program's text, by the names of their fields: one word each."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

from ratrain.program.replicas import Recovery
from ratrain.program.setup import Accumulation, Averages
from ratrain.program.text.form import MOST_BYTES, MOST_COUNT
from ratrain.program.tiers import SETTINGS
from ratrain.readers.numbers import whole


def count_of(word: str) -> int:
    return whole(word, 0, MOST_COUNT)


def size_of(word: str) -> int:
    return whole(word, 0, MOST_BYTES)


def size_or_none_of(word: str) -> int | None:
    return None if word == "none" else size_of(word)


def flag_of(word: str) -> bool:
    if word not in ("yes", "no"):
        raise ValueError(word)
    return word == "yes"


def numbers_of(word: str) -> tuple[int, ...]:
    if word == "none":
        return ()
    numbers: list[int] = []
    for part in word.split(","):
        first, dots, last = part.partition("..")
        start = count_of(first)
        stop = count_of(last) if dots else start
        if stop < start or len(numbers) + stop - start >= MOST_COUNT:
            raise ValueError(word)
        numbers += range(start, stop + 1)
    return tuple(numbers)


def name_of(word: str) -> str:
    return "" if word == "%" else unquote(word)


def names_of(word: str) -> tuple[str, ...]:
    return tuple(map(name_of, word.split(",")))


MEMBER_FIELDS: dict[str, Callable[[str], object]] = {
    "tensor": count_of,
    "serves": numbers_of,
    "joined": count_of,
    **dict.fromkeys(SETTINGS, name_of),
}
"""What a stage line may say of a member besides rank, recovery and output_bytes."""
HEADER_FIELDS: dict[str, Callable[[str], object]] = {
    "sharding": count_of,
    "accumulation": Accumulation,
    "split_backward": flag_of,
    "recovery_buffer": count_of,
    "transit_slots": count_of,
    "bucket_bytes": size_or_none_of,
    "budget_bytes": size_or_none_of,
    "tier": name_of,
    "tied": flag_of,
    "sequence_parallel": flag_of,
    "arrival_places": flag_of,
    "together": count_of,
    "gathers_per_pass": flag_of,
    "period": count_of,
    "averages": Averages,
    "outer": flag_of,
    "average_wire": name_of,
    "forward_only": flag_of,
    "backward_sends": flag_of,
    "error_feedback": count_of,
    "mirrored": flag_of,
    "network_in_turn": flag_of,
    "notes": names_of,
}
FIXES: dict[Callable[[str], object], str] = {
    count_of: f"write a whole number from 0 to {MOST_COUNT:_}",
    size_of: f"write a whole number of bytes up to {MOST_BYTES:_}, e.g. 404_766_720",
    size_or_none_of: f"write a whole number of bytes up to {MOST_BYTES:_}, or none",
    flag_of: "write yes or no",
    numbers_of: "write whole numbers, e.g. 0..3,7, or none",
    Accumulation: f"use one of {', '.join(Accumulation)}",
    Averages: f"use one of {', '.join(filter(None, Averages))}",
    Recovery: f"use one of {', '.join(Recovery)}",
}
