"""Times what happens to a program before it runs: columns, waiting graph, proof, text.

    python benchmarks/program_speed.py

One line a program: ops, and the median seconds of five runs, each on a fresh program.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

from ratrain.program.replicas import Replica, Unit, stage
from ratrain.program.setup import Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.text import read_text, write_text
from ratrain.program.verify import require_sound

RUNS = 5
T = TypeVar("T")


def setup(stages: int, units: int, micro_batches: int, data: int) -> Setup:
    """A pipeline of equal stages; sizes do not matter for the time."""
    cut = [
        stage(rank, tuple(Unit(str(rank * units + n), 2, 4, 24, 1, 8) for n in range(units)), 1)
        for rank in range(stages)
    ]
    return Setup((Replica(tuple(cut), micro_batches, data),))


def timed(action: Callable[..., T], *arguments: object) -> tuple[float, T]:
    """Seconds that a call took, and what it returned."""
    begin = time.perf_counter()
    result = action(*arguments)
    return time.perf_counter() - begin, result


def once(name: str, made_from: Setup) -> tuple[int, tuple[float, ...]]:
    """A program's ops, and the seconds of every stage of its life before it runs."""
    make, program = timed(apply_strategy, strategy(name), made_from, Choices())
    table, columns = timed(lambda: program.table)
    edges, _ = timed(lambda: columns.edges)
    proof, _ = timed(require_sound, program)
    write, text = timed(write_text, program)
    read, _ = timed(read_text, text)
    return len(columns), (make, table, edges, proof, write, read)


def measure(name: str, made_from: Setup) -> None:
    runs = [once(name, made_from) for _ in range(RUNS)]
    columns = zip(*(seconds for _, seconds in runs), strict=True)
    medians = " ".join(f"{statistics.median(column):9.3f}" for column in columns)
    stages, micro_batches = len(made_from.replicas[0].stages), made_from.replicas[0].micro_batches
    print(f"{name:8} {stages:6} {micro_batches:6} {runs[0][0]:8} {medians}")


if __name__ == "__main__":
    print(f"Python {platform.python_version()}, {platform.machine()}, medians of {RUNS} in seconds")
    print(f"{'program':8} {'stages':>6} {'micro':>6} {'ops':>8}", end=" ")
    print(" ".join(f"{name:>9}" for name in ("make", "table", "edges", "verify", "write", "read")))
    measure("1f1b", setup(64, 1, 512, 1))
    measure("ratrain", setup(16, 5, 256, 16))
    measure("ratrain", setup(16, 5, 512, 16))
