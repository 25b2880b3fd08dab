"""How many micro-batches a rank holds at its fullest moments, read off a skeleton's own order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ratrain.program.actions import Kind
from ratrain.program.skeletons import SKELETONS, Place
from ratrain.program.units import Ints


@dataclass(frozen=True)
class Held:
    """A rank's fullest moments: a row each, a column for each stage it holds.

    `inputs`: micro-batches whose forward began and whose backward has not ended; `waiting`:
    those among them that only wait for their weight gradient (split backward).
    """

    inputs: Ints
    waiting: Ints


def micro_batches_needed(skeleton: str, pipeline: int, virtual: int, micro_batches: int) -> int:
    """As few micro-batches as hold as much memory as `micro_batches` do."""
    if skeleton == "gpipe":
        return micro_batches
    rounds = 4 * pipeline if virtual > 1 or SKELETONS[skeleton].chunks else 2 * pipeline + 2
    return min(micro_batches, rounds)


@lru_cache(maxsize=4096)
def held_by_rank(
    skeleton: str, pipeline: int, virtual: int, micro_batches: int
) -> tuple[Held, ...]:
    """The `Held` of each pipeline rank. A moment that another one exceeds everywhere is left out."""
    count = micro_batches_needed(skeleton, pipeline, virtual, micro_batches)
    order = SKELETONS[skeleton].order
    return tuple(
        _fullest(order(Place(rank, pipeline, virtual, count)), pipeline, virtual)
        for rank in range(pipeline)
    )


def _fullest(steps: object, pipeline: int, virtual: int) -> Held:
    held, waiting = [0] * virtual, [0] * virtual
    moments: set[tuple[int, ...]] = set()
    for kind, stage, _ in steps:  # type: ignore[attr-defined]
        chunk = stage // pipeline
        if kind is Kind.F:
            held[chunk] += 1
        elif kind is Kind.I:
            waiting[chunk] += 1
        moments.add((*held, *waiting))
        if kind in (Kind.B, Kind.W):
            held[chunk] -= 1
        if kind is Kind.W:
            waiting[chunk] -= 1
    found = np.array(sorted(moments, reverse=True), dtype=np.int64)
    beaten = [bool(((found >= row).all(axis=1) & (found > row).any(axis=1)).any()) for row in found]
    best = found[~np.array(beaten)]
    return Held(best[:, :virtual], best[:, virtual:])
