"""Whole and real numbers out of words: of bounded length, finite, within bounds."""

from __future__ import annotations

import math
import re

from ratrain.readers.limits import DIGITS

_WHOLE = re.compile(r"\d[\d_]*", re.ASCII)
_PREFIXES = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}
_REAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)


def whole(text: str, low: int = 0, high: int = 10**18) -> int:
    """The number of a word such as "404_766_720"; ValueError for others, and out of bounds."""
    if len(text) > DIGITS or not _WHOLE.fullmatch(text):
        raise ValueError("not a whole number")
    number = int(text)
    if not low <= number <= high:
        raise ValueError(f"not from {low:,} to {high:,}")
    return number


def is_number(text: str) -> bool:
    """Whether a word is a plain whole number that fits a machine's: ASCII digits, 18 at most."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def real(text: str) -> float:
    """The finite number of a word such as "1.5e-3"; ValueError for any other."""
    if len(text) > DIGITS or not _REAL.fullmatch(text):
        raise ValueError("not a number")
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("too large")
    return number


def scaled(value: float, unit: str) -> str:
    """Three significant digits at least, with the prefix that suits: (2e10, "B") -> "20 GB"."""
    for prefix, scale in _PREFIXES.items():
        if abs(value) >= scale * 0.9995:
            return f"{short(value / scale)} {prefix}{unit}"
    return f"{short(value)} {unit}"


def short(number: float) -> str:
    """Three significant digits, or all before the point."""
    return f"{number:.0f}" if abs(number) >= 999.5 else f"{number:.3g}"
