"""How many micro-batches a rank holds at its fullest moments: as a skeleton declares it, or read
off its own order."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from ratrain.program.kind import Kind
from ratrain.program.skeletons import SKELETONS, Place, Skeleton, Steps
from ratrain.program.units import Ints


def held_by_rank(
    skeleton: str, pipeline: int, virtual: int, micro_batches: int
) -> tuple[Ints, ...]:
    """For each pipeline rank its fullest moments: a row each, a column for each stage it holds.

    A micro-batch is held from the beginning of its forward to the end of its backward (of its
    weight gradient, where backward is split). Moments that another exceeds are left out.
    """
    return held_by_ranks_of(SKELETONS[skeleton], pipeline, virtual, micro_batches)


@lru_cache(maxsize=4096)  # by the skeleton itself: what a name stands for may change
def held_by_ranks_of(
    skeleton: Skeleton, pipeline: int, virtual: int, micro_batches: int
) -> tuple[Ints, ...]:
    places = [Place(rank, pipeline, virtual, micro_batches) for rank in range(pipeline)]
    if skeleton.held is not None:
        return tuple(np.array(skeleton.held(place), dtype=np.int64) for place in places)
    # A few rounds hold as much as many.
    rounds = 4 * pipeline if skeleton.chunks else 2 * pipeline + 2
    few = skeleton.shortened(micro_batches, rounds, pipeline, virtual)
    places = [replace(place, micro_batches=few) for place in places]
    return tuple(_fullest(skeleton.order(place), pipeline, virtual) for place in places)


def most_held(skeleton: str, pipeline: int, micro_batches: int) -> Ints:
    """For each pipeline rank, where it holds one stage: its micro-batches at the fullest moment."""
    return most_held_of(SKELETONS[skeleton], pipeline, micro_batches)


@lru_cache(maxsize=4096)
def most_held_of(skeleton: Skeleton, pipeline: int, micro_batches: int) -> Ints:
    rows = held_by_ranks_of(skeleton, pipeline, 1, micro_batches)
    most = np.array([int(row.max()) for row in rows], dtype=np.int64)
    most.setflags(write=False)  # every caller has the same array
    return most


def _fullest(steps: Steps, pipeline: int, virtual: int) -> Ints:
    held = [0] * virtual
    moments: set[tuple[int, ...]] = set()
    for kind, stage, _ in steps:
        chunk = stage // pipeline
        if kind is Kind.F:
            held[chunk] += 1
            moments.add(tuple(held))
        elif kind.adds_gradient:
            held[chunk] -= 1
    candidates = np.array(sorted(moments, reverse=True), dtype=np.int64)
    beaten = [
        bool(((candidates >= row).all(axis=1) & (candidates > row).any(axis=1)).any())
        for row in candidates
    ]
    return candidates[~np.array(beaten)]
