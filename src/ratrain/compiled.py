"""Finds the compiled parts of RATrain: plain C libraries built beside their Python twins."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt


@cache
def library(room: str, name: str) -> ctypes.CDLL | None:
    """The C library `name` of a room, or None where none was built (no C compiler at install)."""
    folder = Path(__file__).parent / room
    for path in sorted(folder.glob(f"{name}.*")):
        if path.suffix in (".so", ".pyd", ".dylib"):
            try:
                return ctypes.CDLL(str(path))
            except OSError:
                continue
    return None


def c_long(value: int) -> ctypes.c_int64:
    """An integer as every C function here takes it."""
    return ctypes.c_int64(value)


def address(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    """Where a contiguous array's numbers stand. The caller keeps the array alive."""
    if not array.flags.c_contiguous:
        raise ValueError("a C function needs a contiguous array")
    return ctypes.c_void_p(array.__array_interface__["data"][0])  # quicker than `array.ctypes`
