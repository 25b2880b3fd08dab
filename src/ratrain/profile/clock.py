"""Timing a piece of work: repeated in blocks, the median kept, the blocks compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

BLOCKS = 3
"""A figure is measured this many times over. Blocks that disagree were disturbed."""


@dataclass(frozen=True)
class Timing:
    """The median of one call over all blocks, and each block's own median; in seconds."""

    median_s: float
    blocks_s: tuple[float, ...]


def timing(
    work: Callable[[], object], *, least: int = 3, within_s: float = 0.4, most: int = 10_000
) -> Timing:
    """The `Timing` of one call, after one call to warm up.

    At least `least` calls, then more until `within_s` have passed; both count for all blocks.
    """
    work()
    times: list[float] = []
    blocks: list[float] = []
    for number in range(BLOCKS):
        block: list[float] = []
        fewest = -(-(least * (number + 1)) // BLOCKS) - len(times)
        began = time.perf_counter()
        while len(block) < max(fewest, 1) or (
            time.perf_counter() - began < within_s / BLOCKS and len(block) < most // BLOCKS
        ):
            start = time.perf_counter()
            work()
            block.append(time.perf_counter() - start)
        times += block
        blocks.append(statistics.median(block))
    return Timing(statistics.median(times), tuple(blocks))
