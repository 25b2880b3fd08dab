"""Receive buffers that a schedule needs, where they are used again.

A buffer is taken when a receive is posted and held until the weight gradient of that stage and
micro-batch is made (B or W): backward reads the input that came forward, and the gradient that came
backward, to the end. Without a backward, until the forward. Both ends count: what is posted in the
moment in which another is let go needs a buffer of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ratrain.program.pipelining.cells import Act, Action, Schedule
from ratrain.program.pipelining.messages import Mail
from ratrain.program.pipelining.work import Work


@dataclass(frozen=True)
class Held:
    """A receive, and the last action that reads what it received: from cell to cell of a row."""

    receive: Action
    until: int


@dataclass(frozen=True)
class Buffers:
    """The receive buffers of each rank, all of one size."""

    held: Mapping[int, tuple[Held, ...]]
    """What each rank receives."""

    @cached_property
    def by_stage(self) -> tuple[int, ...]:
        """Of each rank, with a pool for each stage and direction."""
        return tuple(sum(_most(pool) for pool in _pools(row)) for row in self.held.values())

    @cached_property
    def by_rank(self) -> tuple[int, ...]:
        """Of each rank, with one pool for all that it receives."""
        return tuple(_most(row) for row in self.held.values())


def buffers_of(schedule: Schedule, work: Work, mail: Mail) -> Buffers:
    """The receive buffers of a schedule in which nothing is missing."""
    held: dict[int, list[Held]] = {rank: [] for rank in range(len(schedule.rows))}
    for message in mail.messages:
        receive = message.receive
        if receive is None:
            continue
        key = receive.stage, receive.micro_batch
        readers = work.weights.get(key) or work.forward.get(key) or [receive]
        held[receive.rank].append(Held(receive, max(readers[0].cell, receive.cell)))
    return Buffers({rank: tuple(row) for rank, row in held.items()})


def _pools(row: Sequence[Held]) -> list[list[Held]]:
    """Those of each stage and direction."""
    pools: dict[tuple[int, Act], list[Held]] = {}
    for one in row:
        pools.setdefault((one.receive.stage, one.receive.act), []).append(one)
    return list(pools.values())


def _most(held: Sequence[Held]) -> int:
    """How many are held at once, at most."""
    changes: Counter[int] = Counter()
    for one in held:
        changes[one.receive.cell] += 1
        changes[one.until + 1] -= 1
    return max(accumulate(change for _, change in sorted(changes.items())), default=0)
