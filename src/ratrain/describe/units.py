"""Typed quantities: "20GB", "3.7GB/s", "100Mb/s", "40us", "8.1TFLOP/s", read and written.

G is 1e9 and Gi is 2**30; `B` is bytes, `b` or `bit` is bits (eight to the byte).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping

from ratrain.errors import SpecError
from ratrain.readers.files import shown
from ratrain.readers.numbers import scaled, short

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIXES = {**_DECIMAL, **_BINARY}
DAY_S = 86_400

BYTES: Mapping[str, float] = {f"{p}B": n for p, n in _PREFIXES.items()}
BYTES_RATE: Mapping[str, float] = {
    **{f"{p}B/s": n for p, n in _PREFIXES.items()},
    **{f"{p}{bit}/s": n / 8 for p, n in _PREFIXES.items() for bit in ("b", "bit")},
}
TIME: Mapping[str, float] = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
}
FLOPS_RATE: Mapping[str, float] = {
    **{f"{p}FLOP/s": n for p, n in {**_DECIMAL, "E": 10**18}.items()},
    **{f"{p}FLOPS": n for p, n in {**_DECIMAL, "E": 10**18}.items()},
}

_QUANTITY = re.compile(
    r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([^\d\s]*)\s*", re.ASCII
)
_MOST_CHARS = 64
_EXAMPLE = {"size": "20GB", "bandwidth": "3.7GB/s", "time": "40us", "compute rate": "8.1TFLOP/s"}


def parse_bytes(text: str) -> int:
    """Bytes of "20GB", "512KiB"; fractions round to a byte; exact to 2**53 bytes."""
    return round(_parse(text, BYTES, "size"))


def parse_bytes_rate(text: str) -> float:
    """Bytes per second of "3.7GB/s" or, in bits, "1Gbit/s" and "100Mb/s"."""
    return _parse(text, BYTES_RATE, "bandwidth")


def parse_time(text: str) -> float:
    """Seconds of "40us", "0.15 ms", "2h"."""
    return _parse(text, TIME, "time")


def parse_flops_rate(text: str) -> float:
    """Floating-point operations per second of "8.1TFLOP/s"."""
    return _parse(text, FLOPS_RATE, "compute rate")


def _parse(text: str, units: Mapping[str, float], what: str) -> float:
    match = _QUANTITY.fullmatch(text) if len(text) <= _MOST_CHARS else None
    if match is None:
        raise SpecError(
            f"{shown(text)} is not a {what}", place=what, fix=f'write it like "{_EXAMPLE[what]}"'
        )
    number, unit = float(match[1].replace("_", "")), match[2]
    if unit not in units:
        reason = f'the unit "{unit}" is not known' if unit else "it has no unit"
        raise SpecError(
            f'"{text}" is not a {what}: {reason}', place=what, fix=_nearest_unit(unit, units)
        )
    scale = units[unit]
    # Dividing by 1e6 rounds once; multiplying by an inexact 1e-6 would round twice.
    value = number * scale if scale >= 1 or 8 * scale == 1 else number / round(1 / scale)
    if not math.isfinite(value):
        raise SpecError(
            f'"{text}" is too large', place=what, fix=f'write it like "{_EXAMPLE[what]}"'
        )
    return value


def _nearest_unit(unit: str, units: Mapping[str, float]) -> str:
    folded = {name.lower(): name for name in reversed(list(units))}
    near = difflib.get_close_matches(unit.lower(), folded, n=1, cutoff=0.5)
    common = ", ".join(name for name in units if not name.startswith(("P", "E", "K")))
    return (f'use "{folded[near[0]]}"; ' if near else "") + f"valid units: {common}"


def format_bytes(size_bytes: float) -> str:
    """Decimal, three significant digits at least: 20000000000 -> "20 GB"."""
    return scaled(size_bytes, "B")


def format_bytes_rate(rate_bytes_per_s: float) -> str:
    """3.7e9 -> "3.7 GB/s"."""
    return scaled(rate_bytes_per_s, "B/s")


def format_flops_rate(rate_flops: float) -> str:
    """8.1e12 -> "8.1 TFLOP/s"."""
    return scaled(rate_flops, "FLOP/s")


def format_count(count: float) -> str:
    """6738415616 -> "6.74 G"."""
    return scaled(count, "").strip()


def counted(count: int, noun: str) -> str:
    """(1, "device") -> "1 device"; (1200, "op") -> "1,200 ops"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_time(time_s: float) -> str:
    """4e-5 -> "40 us"; 90.5 -> "90.5 s"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(time_s) >= scale * 0.9995 or time_s == 0:
            return f"{short(time_s / scale)} {unit}"
    return f"{short(time_s / 1e-9)} ns"


def format_long_time(time_s: float) -> str:
    """The same; of two minutes or more also in minutes and hours: "1704 s (28 min 24 s)"."""
    if time_s < 120:
        return format_time(time_s)
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    words = f"{hours:,} h {minutes} min" if hours else f"{minutes} min {seconds} s"
    return f"{format_time(time_s)} ({words})"


def clock_of(time_s: float) -> str:
    """A length of time: "0:07", "1:02:03"."""
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
