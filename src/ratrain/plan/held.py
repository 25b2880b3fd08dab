"""How many micro-batches a rank holds at its fullest moments, read off a skeleton's own order."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ratrain.program.actions import Kind
from ratrain.program.skeletons import SKELETONS, Place, Steps
from ratrain.program.units import Ints


@lru_cache(maxsize=4096)
def held_by_rank(
    skeleton: str, pipeline: int, virtual: int, micro_batches: int
) -> tuple[Ints, ...]:
    """For each pipeline rank its fullest moments: a row each, a column for each stage it holds.

    A micro-batch is held from the beginning of its forward to the end of its backward (of its
    weight gradient, where backward is split). Moments that another exceeds are left out.
    """
    if skeleton in ("1f1b", "gpipe"):
        most = most_held(skeleton, pipeline, micro_batches)
        return tuple(np.array([[count]]) for count in most.tolist())
    rounds = 4 * pipeline if SKELETONS[skeleton].chunks else 2 * pipeline + 2
    count = min(micro_batches, rounds)
    order = SKELETONS[skeleton].order
    return tuple(
        _fullest(order(Place(rank, pipeline, virtual, count)), pipeline, virtual)
        for rank in range(pipeline)
    )


def most_held(skeleton: str, pipeline: int, micro_batches: int) -> Ints:
    """For each pipeline rank, where it holds one stage: its micro-batches at the fullest moment."""
    if skeleton == "1f1b":
        return np.minimum(np.arange(pipeline, 0, -1), micro_batches)
    if skeleton == "gpipe":
        return np.full(pipeline, micro_batches, dtype=np.int64)
    rows = held_by_rank(skeleton, pipeline, 1, micro_batches)
    return np.array([int(row.max()) for row in rows], dtype=np.int64)


def _fullest(steps: Steps, pipeline: int, virtual: int) -> Ints:
    held = [0] * virtual
    moments: set[tuple[int, ...]] = set()
    for kind, stage, _ in steps:
        chunk = stage // pipeline
        if kind is Kind.F:
            held[chunk] += 1
            moments.add(tuple(held))
        elif kind in (Kind.B, Kind.W):
            held[chunk] -= 1
    found = np.array(sorted(moments, reverse=True), dtype=np.int64)
    beaten = [bool(((found >= row).all(axis=1) & (found > row).any(axis=1)).any()) for row in found]
    return found[~np.array(beaten)]
