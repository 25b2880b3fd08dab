"""How every search goes from one thing to ever faster ones: to the fastest of those near it, and
again, as long as that gains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from operator import itemgetter
from typing import TypeVar

Climber = TypeVar("Climber")


def climbed(
    start: Climber,
    near: Callable[[Climber], Iterable[Climber]],
    time_s: Callable[[Climber], float],
    *,
    gain: float,
    rounds: int,
) -> Iterator[Climber]:
    """Ever faster ones, each the fastest `near` the one before, as long as each saves this part of
    the time before it."""
    here, here_s = start, time_s(start)
    for _ in range(rounds):
        timed = ((time_s(other), other) for other in near(here))
        best_s, best = min(timed, key=itemgetter(0), default=(inf, here))
        if best_s >= here_s * (1 - gain):
            return
        here, here_s = best, best_s
        yield here
