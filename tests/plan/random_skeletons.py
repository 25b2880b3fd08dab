"""Random compute orders that could run, and skeletons that declare them, rightly or not."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache

from hypothesis import strategies as st

from ratrain.errors import ProgramError
from ratrain.program.skeletons import B, F, Place, Skeleton, Steps


@lru_cache(maxsize=256)
def _block(seed: int, ranks: int, chunks: int, micro_batches: int) -> list[list[tuple[bool, int]]]:
    """For each rank (forward?, stage) in the order of a random walk: each forward once its input is
    there, each backward once its gradient is."""
    chance = random.Random(hash((seed, ranks, chunks, micro_batches)))
    stages = ranks * chunks
    eager = chance.random()
    forward, backward = [0] * stages, [0] * stages
    order: list[list[tuple[bool, int]]] = [[] for _ in range(ranks)]
    while backward[0] < micro_batches:
        forwards = [
            s for s in range(stages) if forward[s] < (forward[s - 1] if s else micro_batches)
        ]
        backwards = [
            s
            for s in range(stages)
            if backward[s] < (backward[s + 1] if s < stages - 1 else forward[s])
        ]
        is_forward = not backwards or (bool(forwards) and chance.random() < eager)
        stage = chance.choice(forwards if is_forward else backwards)
        (forward if is_forward else backward)[stage] += 1
        order[stage % ranks].append((is_forward, stage))
    return order


def random_order(
    seed: int, wave: int | None, multiple: Callable[[int], int] | None
) -> Callable[[Place], Steps]:
    """A random order of all micro-batches, or the same one for every so many of them; none, for
    micro-batches that are no multiple."""

    def order(place: Place) -> Steps:
        """Random."""
        if multiple is not None and place.micro_batches % multiple(place.ranks):
            raise ProgramError("no such order", fix="use another number of micro-batches")
        for first in range(0, place.micro_batches, wave or place.micro_batches):
            size = min(wave or place.micro_batches, place.micro_batches - first)
            seen: dict[tuple[bool, int], int] = {}
            for step in _block(seed, place.ranks, place.chunks, size)[place.rank]:
                turn = seen.get(step, 0)
                seen[step] = turn + 1
                yield F if step[0] else B, step[1], first + turn

    return order


def most_held(order: Callable[[Place], Steps], place: Place) -> list[tuple[int, ...]]:
    """A rank's fullest moments, too many of them."""
    held = [0] * place.chunks
    moments: set[tuple[int, ...]] = set()
    for kind, stage, _ in order(place):
        held[stage // place.ranks] += 1 if kind is F else -1
        moments.add(tuple(held))
    return sorted(moments)


@st.composite
def skeletons(draw: st.DrawFn) -> Skeleton:
    """A random skeleton: what it declares is right, or left out; `held` may be wrong."""
    seed, wave = draw(st.integers(0, 10**6)), draw(st.sampled_from([None, 1, 2, 3, 5, 8]))
    of = draw(st.sampled_from([None, None, 2, 3, "ranks"]))
    multiple = None if of is None else _multiple(of)
    order = random_order(seed, wave, multiple)
    held = {
        "read": None,
        "right": lambda place: most_held(order, place),
        "too few": lambda place: [(1,) * place.chunks],
        "too many": lambda place: [(place.micro_batches,) * place.chunks],
    }[draw(st.sampled_from(["read", "read", "right", "too few", "too many"]))]
    return Skeleton(
        order,
        chunks=draw(st.booleans()),
        arrival_places=draw(st.sampled_from([True, True, False])),
        together=draw(st.sampled_from([1, 1, 2, 3, 8])),
        held=held,
        multiple=multiple,
        repeats=None if wave is None else lambda _ranks, _chunks: wave,
    )


def _multiple(of: int | str) -> Callable[[int], int]:
    return lambda ranks: ranks if isinstance(of, str) else of
