"""The processors that a rank has, and what work beside compute takes from compute.

Beside compute work network threads and the optimizer. Where a process has processors to spare,
they take nothing. Where it has a share of one, they come out of the same share, and compute stands
still for them.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_BURN_S = 0.3
_BLOCK_BYTES = 1 << 18
"""Hashing as much takes a fraction of a millisecond and holds no interpreter lock."""


@dataclass(frozen=True)
class Processor:
    """`share`: processors that the process gets while all ranks want all they can get; `busy`:
    those that compute alone keeps busy."""

    share: float
    busy: float

    @property
    def delay_s_per_cpu_s(self) -> float:
        """Seconds that compute stalls for each second of processor time spent beside it.

        Work beside compute wants one processor more. What the share lacks of both, clamp(busy + 1 -
        share, 0, 1), is taken in turns: a second of processor time is 1 / share seconds of such
        turns, and compute loses the part busy / share of its own. With half a processor and one
        thread: 2; with two processors: 0; where compute is another device's: next to 0.
        """
        lacking = min(1.0, max(0.0, self.busy + 1.0 - self.share))
        return lacking * self._part / self.share

    @property
    def computes(self) -> bool:
        """Whether compute is this process's own, and no other device's."""
        return self._part > 0.5

    @property
    def _part(self) -> float:
        return min(1.0, self.busy / self.share)


def with_processors(work: Callable[[], T]) -> tuple[T, float]:
    """What it returns, and how many processors this process kept busy meanwhile."""
    began_s, worked_s = time.perf_counter(), time.process_time()
    result = work()
    busy_s = time.process_time() - worked_s
    return result, busy_s / (time.perf_counter() - began_s)


def processor_share(processors: int) -> float:
    """Processors that this process gets when it wants that many; at most `processors`. All ranks
    must measure at once, as they will work at once."""

    def burn() -> None:
        with working(processors):
            time.sleep(_BURN_S)

    return min(float(processors), with_processors(burn)[1])


@contextmanager
def working(threads: int) -> Generator[None]:
    """Inside, that many threads keep processors busy, as compute does."""
    ended = threading.Event()
    block = bytes(_BLOCK_BYTES)

    def work() -> None:
        while not ended.is_set():
            hashlib.sha256(block).digest()

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        ended.set()
        for worker in workers:
            worker.join()
