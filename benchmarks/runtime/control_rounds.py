"""How many bytes a round of control takes, and how long, by the number of ranks.

    python benchmarks/runtime/control_rounds.py

The ranks are threads of this process, over socket pairs; each runs the `Control` of a real run. On
two busy cores (Python 3.11, 2026-11-26), bytes sent by all ranks for one step's round:

    ranks           16         64        256      1,024
    before      36,000    574,560  9,180,000       (147 MB)
    now          4,440     18,648     75,480    302,808

Before, rank 0 sent every rank the reports of all of them; now each sends one, and gets one that
stands for all. (Of 1,024 ranks before: computed, from 140 bytes a report.)
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any, cast

from torch import Tensor

from ratrain.runtime.rank.control import Control, RankReport
from ratrain.runtime.step.network.broadcast import Broadcast, By, combined
from ratrain.runtime.step.network.connection import Connection

PATIENCE_S = 120.0
STEPS = 5


class Rounds:
    """What control needs of a rank's network: its broadcast."""

    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast

    def combine(self, _lane: object, values: Tensor, by: By) -> Tensor:
        return combined(self._broadcast, values, by)


def broadcasts(ranks: int) -> tuple[list[Broadcast], list[Connection]]:
    """Every rank's broadcast, and all ends of their connections."""
    upper: dict[int, Connection] = {}
    lower: list[Connection] = []
    for rank in range(1, ranks):
        ends = socket.socketpair()
        upper[rank] = Connection(ends[0], 0, rank, PATIENCE_S)
        lower.append(Connection(ends[1], rank, 0, PATIENCE_S))
    others = [Broadcast(rank, ranks, {0: end}) for rank, end in enumerate(lower, 1)]
    return [Broadcast(0, ranks, upper), *others], [*upper.values(), *lower]


def rounds(ranks: int, steps: int = STEPS) -> tuple[int, float]:
    """Bytes that all ranks send, and seconds, for one step's round."""
    made, ends = broadcasts(ranks)
    problems: list[BaseException] = []
    report = RankReport(**dict.fromkeys((field.name for field in fields(RankReport)), 0.0))
    controls = [
        Control(
            cast("Any", Rounds(broadcast)),
            first_step=0,
            end_step=steps,
            period=1,
            groups=[0] * ranks,
            on_round=lambda *_: None,
            fail=problems.append,
        )
        for broadcast in made
    ]
    began_s = time.perf_counter()
    for step in range(steps):
        for control in controls:
            control.post(step, report)
    for control in controls:
        control.finish()
    took_s = time.perf_counter() - began_s
    if problems:
        raise problems[0]
    sent = sum(end.sent_bytes for end in ends)
    for end in ends:
        end.close()
    return sent // steps, took_s / steps


def main(counts: list[int], say: Callable[[str], None] = print) -> None:
    """A line for each number of ranks."""
    threading.stack_size(1 << 20)
    for ranks in counts:
        sent, took_s = rounds(ranks)
        say(f"{ranks:5,} ranks  {sent:10,} bytes  {1e3 * took_s:8.1f} ms a round")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [16, 64, 256])
