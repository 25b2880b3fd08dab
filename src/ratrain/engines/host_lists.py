"""Lists of hosts and of counts as Slurm writes them."""

from __future__ import annotations

import re
from itertools import product

_ENTRY = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_PIECE = re.compile(r"[^\[]+|\[[^\]]*\]")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def hosts(text: str) -> list[str]:
    """`n[1-3,07],m1` as n1, n2, n3, n07, m1."""
    return [
        "".join(pieces)
        for entry in _ENTRY.findall(text)
        for pieces in product(*map(_choices, _PIECE.findall(entry)))
    ]


def counts(text: str) -> list[int]:
    """`2,1(x2)` as 2, 1, 1."""
    return [int(count) for count, times in _COUNT.findall(text) for _ in range(int(times or 1))]


def _choices(piece: str) -> list[str]:
    if not piece.startswith("["):
        return [piece]
    names: list[str] = []
    for bounds in piece[1:-1].split(","):
        low, _, high = bounds.partition("-")
        names += [f"{n:0{len(low)}d}" for n in range(int(low), int(high or low) + 1)]
    return names
