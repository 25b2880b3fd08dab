"""Memory for data of partitions: so many cells of one size, of which a datum takes as many as it
needs, and who has to leave when none is free.

The order of an epoch is known, so the farthest next use leaves (Belady's rule), and what is not
used again leaves at once.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ratrain.graph.trace import Datum, Item

NEVER = 1 << 60


class NextUses:
    """At which item of an epoch a datum is used next."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._at: dict[Datum, list[int]] = defaultdict(list)
        for at, item in enumerate(items):
            for datum in item.reads:
                self._at[datum].append(at)

    def after(self, datum: Datum, at: int) -> int:
        """The first use after an item; NEVER where there is none."""
        uses = self._at.get(datum, ())
        place = bisect_right(uses, at)
        return uses[place] if place < len(uses) else NEVER


class Cells:
    """Who has which cells. `recent`: the datum whose last use is longest ago leaves, instead of the
    one whose next use is farthest."""

    def __init__(self, count: int, *, recent: bool) -> None:
        self.free = list(range(count - 1, -1, -1))
        self.held: dict[Datum, list[int]] = {}
        self._recent = recent
        self._queue: list[tuple[int, Datum]] = []
        self._rank: dict[Datum, int] = {}

    def take(self, datum: Datum, count: int) -> list[int]:
        """Gives a datum cells, of which so many are free."""
        taken = self.held[datum] = [self.free.pop() for _ in range(count)]
        return taken

    def leave(self, datum: Datum) -> list[int]:
        """Takes them back."""
        cells = self.held.pop(datum)
        self._rank.pop(datum, None)
        self.free += cells
        return cells

    def used(self, datum: Datum, at: int, next_use: int) -> None:
        """A datum is used at an item, and next at another."""
        rank = at if self._recent else -next_use
        self._rank[datum] = rank
        heapq.heappush(self._queue, (rank, datum))

    def leaver(self, kept: Iterable[Datum]) -> Datum | None:
        """Who leaves first, but for those kept; None where nobody can."""
        kept = set(kept)
        put_back: list[tuple[int, Datum]] = []
        found: Datum | None = None
        while self._queue:
            rank, datum = heapq.heappop(self._queue)
            if self._rank.get(datum) != rank or datum not in self.held:
                continue
            put_back.append((rank, datum))
            if datum not in kept:
                found = datum
                break
        for entry in put_back:
            heapq.heappush(self._queue, entry)
        return found
