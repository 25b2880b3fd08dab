"""The critical path: the chain of ops, each waiting for the one before, that ends a step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ratrain.program.actions import Kind
from ratrain.program.table import Table
from ratrain.simulate.engine import Run
from ratrain.simulate.result import Window


@dataclass(frozen=True)
class CriticalPart:
    """Consecutive ops of the path that are of one kind and on one rank."""

    rank: int
    kind: str
    first: str  # the first op's word
    last: str
    ops: int
    time_s: float


def critical_path(table: Table, run: Run, window: Window) -> tuple[CriticalPart, ...]:
    """The path that ends at the steady step's boundary, back to the boundary before it."""
    n = len(table)
    ends = np.flatnonzero(np.isin(table.kind, [Kind.B, Kind.W])) + window.step * n
    node = int(ends[run.end_s[ends].argmax()])
    began_s = float(run.end_s[node]) - window.length_s
    path: list[tuple[int, float]] = []
    end_s = float(run.end_s[node])
    while node >= 0 and end_s > began_s:
        start_s = max(float(run.start_s[node]), began_s)
        path.append((node, end_s - start_s))
        end_s = start_s
        node = int(run.cause[node])
    path.reverse()
    parts: list[CriticalPart] = []
    for (rank, kind), group in groupby(
        path, key=lambda item: (int(table.rank[item[0] % n]), int(table.kind[item[0] % n]))
    ):
        nodes = list(group)
        parts.append(
            CriticalPart(
                rank=rank,
                kind=Kind(kind).name,
                first=table.word(nodes[0][0] % n),
                last=table.word(nodes[-1][0] % n),
                ops=len(nodes),
                time_s=sum(time_s for _, time_s in nodes),
            )
        )
    return tuple(parts)
