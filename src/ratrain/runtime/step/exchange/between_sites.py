"""Who averages which elements of a unit with whom, where sites average weights.

At each site the ranks that hold a unit own equal parts of its flat buffer, in their order, and
sites may have other numbers of them: one replica that has it all, beside three that have a third
each. What one rank of each site owns together is a range, which these ranks average: each adds up
one part of it in the order of sites, so all get the same bits however sites divide it.

All ranks go through the ranges in the same order, which is one of rounds: in a round no rank has
two of them, so that ranges of other ranks are on their way at once.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from itertools import count
from typing import NamedTuple

from ratrain.ranges import Block, copies, cut, line
from ratrain.runtime.seats import Groups, Holders
from ratrain.runtime.step.optimizer import owned_range

_NAME, _NOBODY = "unit", -1


class Range(NamedTuple):
    """Elements of a unit's flat buffer, and who owns them: a rank of each site, in their order."""

    holders: Holders
    begin: int
    end: int

    def within(self, first: int) -> slice:
        """Its elements in a tensor that begins with element `first` of the buffer."""
        return slice(self.begin - first, self.end - first)

    def part(self, place: int) -> slice:
        """Of its elements those that one of the holders adds up, and writes to a checkpoint where
        all have the same."""
        each = (self.end - self.begin) // len(self.holders)
        return slice(place * each, (place + 1) * each)


@lru_cache(maxsize=256)
def ranges_between(sites: Groups, elements: int) -> tuple[Range, ...]:
    """The ranges of a unit of so many elements, round by round. `sites`: who holds it at each. Each
    element is in one of them; raises SpecError where a site has nobody for it."""
    held = [
        {rank: [_owned(elements, site, place)] for place, rank in enumerate(site)} for site in sites
    ]
    every = [block for site in held for blocks in site.values() for block in blocks]
    needed = {_NOBODY: cut(line(_NAME, 0, elements, 0), every)}
    ranges = [
        Range(tuple(copy.source for copy in of_range), *of_range[0].needed.columns)
        for of_range in zip(*(copies(site, needed) for site in held), strict=True)
    ]
    return tuple(_in_rounds(ranges))


def _owned(elements: int, site: Holders, place: int) -> Block:
    begin, end = owned_range(elements, len(site), place)
    return line(_NAME, begin, end, begin)


def _in_rounds(ranges: list[Range]) -> list[Range]:
    """Each in the first round in which none of its ranks has another one."""
    taken: dict[int, set[int]] = defaultdict(set)
    placed: list[tuple[int, Range]] = []
    for each in ranges:
        turn = next(n for n in count() if not any(n in taken[rank] for rank in each.holders))
        for rank in each.holders:
            taken[rank].add(turn)
        placed.append((turn, each))
    return [each for _, each in sorted(placed, key=lambda entry: entry[0])]
