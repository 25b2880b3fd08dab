"""A tensor group of threads: real sums in the order of ranks, no processes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError
from typing import TypeVar

import torch
from torch import Tensor

from ratrain.models.division import Division

T = TypeVar("T")
PATIENCE_S = 30


class _Meeting:
    """Where the ranks of a group put down what all may read."""

    def __init__(self, degree: int) -> None:
        self.barrier = Barrier(degree, timeout=PATIENCE_S)
        self.put: list[Tensor | None] = [None] * degree


class ThreadGroup:
    """One thread's place in its tensor group."""

    def __init__(self, division: Division, meeting: _Meeting, *, divides_rows: bool) -> None:
        self.division, self.divides_rows = division, divides_rows
        self._meeting = meeting
        self._gathered: list[weakref.ref[torch.UntypedStorage]] = []

    def sum_(self, part: Tensor) -> None:
        heard = self.gather(part)
        total = heard[0].clone()
        for values in heard[1:]:
            total += values
        part.copy_(total)

    def sum_rows(self, parts: Tensor) -> Tensor:
        self.sum_(parts)
        return parts[self.division.rank].clone()

    def gather_rows(self, rows: Tensor) -> Tensor:
        whole = torch.cat(self.gather(rows))
        self._gathered.append(weakref.ref(whole.untyped_storage()))
        return whole

    @property
    def gathers(self) -> int:
        """How often rows were gathered."""
        return len(self._gathered)

    @property
    def gathered_bytes(self) -> int:
        """Of gathered rows that are still there."""
        storages = [reference() for reference in self._gathered]
        return sum(storage.nbytes() for storage in storages if storage is not None)

    def gather(self, values: Tensor) -> list[Tensor]:
        self._meeting.put[self.division.rank] = values.clone()
        self._meeting.barrier.wait()
        heard = [values.clone() for values in self._meeting.put if values is not None]
        self._meeting.barrier.wait()
        return heard


def in_group(
    degree: int, work: Callable[[ThreadGroup], T], *, divides_rows: bool = False
) -> list[T]:
    """What `work` returns on each rank of a group of threads."""
    meeting = _Meeting(degree)

    def one(rank: int) -> T:
        try:
            group = ThreadGroup(Division(rank, degree), meeting, divides_rows=divides_rows)
            return work(group)
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(degree) as pool:
        futures = [pool.submit(one, rank) for rank in range(degree)]
    failed = [error for error in (future.exception() for future in futures) if error is not None]
    failed.sort(key=lambda error: isinstance(error, BrokenBarrierError))  # which only follows
    if failed:
        raise failed[0]
    return [future.result() for future in futures]
