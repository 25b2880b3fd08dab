"""How long states take to another memory tier and back, while processors compute as in a step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from ratrain.profile.processor import working
from ratrain.runtime.rank.calibration.measured import Moves, UnitTimes
from ratrain.runtime.step.away import Clock
from ratrain.runtime.step.states import RankStates

MOST_ALIKE = 16
"""Units whose states of a sort are as large: so many are timed, and their mean stands for all."""


def with_moves(
    units: Sequence[UnitTimes], states: RankStates, beside: int
) -> tuple[UnitTimes, ...]:
    """The units' times with those of their moves: `beside` threads compute meanwhile, as they do in
    a step. What a move takes of processors is timed apart, where nothing else works."""
    worked_s = _means(states, time.process_time)
    with working(beside):
        took_s = _means(states, time.perf_counter)
    return tuple(
        replace(unit, moves_s=took_s[index], moves_cpu_s=worked_s[index])
        for index, unit in enumerate(units)
    )


def _means(states: RankStates, clock: Clock) -> list[Moves]:
    """Of each unit, by sort."""
    timed: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    moved = [states.moved_bytes(index) for index in range(len(states.units))]
    for index, sizes in enumerate(moved):
        for sort, size in sizes.items():
            if size and len(timed[sort, size]) < MOST_ALIKE:
                timed[sort, size].append(states.move_s(index, sort, clock))

    def mean(sort: str, size: int) -> tuple[float, float]:
        times = timed.get((sort, size)) or [(0.0, 0.0)]
        fetched_s, stored_s = zip(*times, strict=True)
        return fmean(fetched_s), fmean(stored_s)

    return [{sort: mean(sort, size) for sort, size in sizes.items()} for sizes in moved]
