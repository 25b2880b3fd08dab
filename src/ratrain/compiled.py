"""Finds the compiled parts of RATrain: plain C libraries built beside their Python twins."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

HEART = (("program", "edges_c"), ("program", "walk_c"), ("simulate", "engine_c"))
"""The parts that building, proving and simulating programs stand on."""
SLOWER = "planning, proving and simulating take up to 45 times as long (docs/how-to/install.md)"
_absent: set[tuple[str, str]] = set()
"""What was asked for in this process, and is not there."""


@cache
def library(room: str, name: str) -> ctypes.CDLL | None:
    """The C library `name` of a room, or None where none was built (no C compiler at install)."""
    for path in library_paths(room, name):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    _absent.add((room, name))
    return None


def library_paths(room: str, name: str) -> list[Path]:
    """Where a room's C library is; of several builds the one that any Python can load comes
    first."""
    found = (Path(__file__).parent / room).glob(f"{name}.*")
    libraries = [path for path in found if path.suffix in (".so", ".pyd", ".dylib")]
    return sorted(libraries, key=lambda path: (len(path.name), path.name))


def slow_twins() -> list[str]:
    """The parts of the heart whose Python twins this process has used in their place."""
    return [name for room, name in HEART if (room, name) in _absent]


def c_long(value: int) -> ctypes.c_int64:
    """An integer as every C function here takes it."""
    return ctypes.c_int64(value)


def address(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    """Where a contiguous array's numbers stand. The caller keeps the array alive."""
    if not array.flags.c_contiguous:
        raise ValueError("a C function needs a contiguous array")
    return ctypes.c_void_p(array.__array_interface__["data"][0])  # quicker than `array.ctypes`
