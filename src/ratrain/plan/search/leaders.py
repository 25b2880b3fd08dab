"""Which drafts can still be among those that the search goes on with."""

from __future__ import annotations

from bisect import bisect_left, insort
from math import inf

LEAST = 0.95
"""Part of what a draft's slowest replica takes by itself, by the closed form, below which its step
at the grain of stages does not lie. Measured, not proved: 0.969 was the least of some 9,000 drafts
on three clusters, and 42 random clusters kept their plans."""


class Leaders:
    """The least times of drafts: of each family its best, and of all. A draft that takes longer
    than the last of both is neither followed nor simulated whole."""

    def __init__(self, families: int, drafts: int) -> None:
        self._counts = families, drafts
        self._of_family: dict[object, float] = {}
        self._families_s: list[float] = []
        self._drafts_s: list[float] = []

    def add(self, family: object, time_s: float) -> None:
        """Counts a draft that was timed."""
        insort(self._drafts_s, time_s)
        known_s = self._of_family.get(family, inf)
        if time_s >= known_s:
            return
        if known_s < inf:
            del self._families_s[bisect_left(self._families_s, known_s)]
        self._of_family[family] = time_s
        insort(self._families_s, time_s)

    @property
    def last_s(self) -> float:
        """Infinite as long as there are fewer."""
        of_both = zip((self._families_s, self._drafts_s), self._counts, strict=True)
        return max(times[count - 1] if len(times) >= count else inf for times, count in of_both)
