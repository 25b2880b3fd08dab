"""Finds the compiled parts of RATrain: plain C libraries built beside their Python twins."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path


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
