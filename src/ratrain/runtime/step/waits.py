"""Which waits between lanes are needed: those that no other wait and no lane's order implies.

Of the ops that an op must be behind, most are behind each other: some three quarters of all waits
are left out. What remains is the transitive reduction of the order, which is one and no other (Aho,
Garey and Ullman 1972): without any one of them, two ops that use a state are in no order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Waits = Mapping[int, Sequence[int]]
"""By op, what it waits for on other lanes."""


class Needed(NamedTuple):
    """Waits for ops of the same period, and of the period before."""

    inside: dict[int, tuple[int, ...]]
    across: dict[int, tuple[int, ...]]


def needed(lanes: Sequence[Sequence[int]], inside: Waits, across: Waits) -> Needed:
    """The needed ones of a rank's waits. `lanes`: the ops of each lane, in order."""
    found = Needed({}, {})
    order = _Order(lanes)
    for period in range(2):  # in the second one, all waits of later ones have shown
        for op in _in_order(lanes, inside):
            behind = [(other, period) for other in inside.get(op, ())]
            behind += [(other, period - 1) for other in across.get(op, ()) if period]
            kept = order.put(op, period, behind)
            which = found.across if period else found.inside
            which[op] = tuple(other for other, of_period in kept if of_period == 0)
    return found


class _Order:
    """Ops by what is over before them: of each lane so many ops, counted from the beginning."""

    def __init__(self, lanes: Sequence[Sequence[int]]) -> None:
        self._lengths = [len(ops) for ops in lanes]
        self._place = {
            op: (lane, at) for lane, ops in enumerate(lanes) for at, op in enumerate(ops)
        }
        self._last = [[0] * len(lanes) for _ in lanes]  # what the last op of each lane is behind
        self._behind: dict[tuple[int, int], list[int]] = {}  # each op and all before it

    def put(self, op: int, period: int, behind: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Adds an op behind others; those of them that nothing else implies."""
        lane, _ = self._place[op]
        before = self._last[lane]
        seen = [self._behind[other] for other in behind]
        kept = [
            other
            for number, other in enumerate(behind)
            if not self._implied(other, [before, *seen[:number], *seen[number + 1 :]])
        ]
        mine = [max(counts) for counts in zip(before, *seen, strict=True)]
        mine[lane] = self._count(op, period)
        self._last[lane] = self._behind[op, period] = mine
        return kept

    def _implied(self, other: tuple[int, int], seen: list[list[int]]) -> bool:
        lane, count = self._place[other[0]][0], self._count(*other)
        return any(counts[lane] >= count for counts in seen)

    def _count(self, op: int, period: int) -> int:
        """How many ops of its lane there are up to it."""
        lane, at = self._place[op]
        return period * self._lengths[lane] + at + 1


def _in_order(lanes: Sequence[Sequence[int]], inside: Waits) -> Iterator[int]:
    """All ops, each behind those that it waits for."""
    over = set[int]()
    left = [list(reversed(ops)) for ops in lanes]
    while any(left):
        before = len(over)
        for ops in left:
            while ops and over.issuperset(inside.get(ops[-1], ())):
                over.add(ops[-1])
                yield ops.pop()
        assert len(over) > before, "ops wait for each other in a circle"
