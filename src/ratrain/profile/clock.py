"""Timing a piece of work: repeated, the median kept."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def median_s(
    work: Callable[[], object], *, least: int = 3, within_s: float = 0.4, most: int = 200
) -> float:
    """The median seconds of one call, after one call to warm up.

    At least `least` calls, then more until `within_s` have passed.
    """
    work()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < least or (time.perf_counter() - began < within_s and len(times) < most):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
