"""A program's ops found again in a timeline, and the chain of them that ends a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ratrain.program.kind import Kind, Lane
from ratrain.program.table import Table
from ratrain.program.units import Ints
from ratrain.report.contents import Hop
from ratrain.timeline.compare import kind_of
from ratrain.timeline.timeline import Span, Timeline

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class OpTimes:
    """When each op of a table ran, as steps x ops; not a number where it did not. Of a period of
    several steps each has its own ops."""

    start_s: Floats
    end_s: Floats

    @property
    def last(self) -> int:
        """The last step's row."""
        return len(self.start_s) - 1

    def origin_s(self, table: Table, step: int) -> float:
        """When the first compute op of a step begins."""
        return float(np.nanmin(self.start_s[step][table.lane == Lane.COMPUTE]))


@dataclass(frozen=True)
class Ops:
    """The ops of a program's table by what a timeline calls them."""

    table: Table

    @cached_property
    def _rows(self) -> dict[tuple[int, str, str], int]:
        table = self.table
        lanes = {int(lane): lane.word for lane in Lane}
        ranks: list[int] = table.rank.tolist()
        numbers: list[int] = table.lane.tolist()
        return {
            (rank, lanes[lane], table.word(op)): op
            for op, (rank, lane) in enumerate(zip(ranks, numbers, strict=True))
        }

    def times(self, timeline: Timeline, ranks: Mapping[int, int] | None = None) -> OpTimes:
        """When the ops of a timeline ran, step by step. `ranks` picks ranks of the timeline and
        says which program rank each is; None: they are program ranks."""
        steps = sorted({span.step for span in timeline.spans})
        number = {step: place for place, step in enumerate(steps)}
        start_s = np.full((len(steps), len(self.table)), np.nan)
        end_s = start_s.copy()
        for span in timeline.spans:
            rank = span.rank if ranks is None else ranks.get(span.rank)
            op = None if rank is None else self._rows.get((rank, span.lane, span.word))
            if op is not None:
                start_s[number[span.step], op] = span.start_s
                end_s[number[span.step], op] = span.end_s
        return OpTimes(start_s, end_s)

    def critical_path(self, times: OpTimes, step: int) -> tuple[Hop, ...]:
        """The chain of ops that ends a step, in stretches of one rank, lane and kind. Times count
        from the moment when the step's first compute op begins."""
        start_s, end_s = times.start_s[step], times.end_s[step]
        origin_s = times.origin_s(self.table, step)
        path = self.critical_ops(times, step)
        return tuple(_hops(self.table, path, start_s - origin_s, end_s - origin_s))

    def critical_ops(self, times: OpTimes, step: int) -> list[int]:
        """The ops of that chain: from the last backward back, each time to the op that ended last
        of those that were waited for, as far as that is one of the same step. A transfer waits for
        both of its ends."""
        end_s = times.end_s[step]
        ended_s = times.end_s[step - 1] if step else np.full_like(end_s, np.nan)
        last = np.flatnonzero(self.table.where("adds_gradient") & ~np.isnan(end_s))
        if not len(last):
            return []
        node, path = int(last[end_s[last].argmax()]), list[int]()
        while node >= 0:
            path.append(node)
            node = self._cause(node, end_s, ended_s)
        return path[::-1]

    def _cause(self, node: int, end_s: Floats, ended_s: Floats) -> int:
        """What an op waited for longest; -1 where it waited for nothing, or for the step before.
        `ended_s`: when that step's ops ended."""
        group = int(self.table.group[node])
        meets = self._members.of(group) if group >= 0 else np.array([node])
        inside = np.concatenate([self._inside.of(int(member)) for member in meets])
        across = np.concatenate([self._across.of(int(member)) for member in meets])
        # Of a period's ops some waited for are of the step before: those did not run in this one.
        before = np.concatenate([inside, across])
        inside, before = inside[~np.isnan(end_s[inside])], before[~np.isnan(ended_s[before])]
        if not len(inside):
            return -1
        latest = int(inside[end_s[inside].argmax()])
        before_s = ended_s[before].max() if len(before) else -np.inf
        return latest if end_s[latest] >= before_s else -1

    @cached_property
    def _inside(self) -> _Lists:
        edges = self.table.edges.inside
        return _Lists.of_pairs(edges.target, edges.source)

    @cached_property
    def _across(self) -> _Lists:
        edges = self.table.edges.across
        return _Lists.of_pairs(edges.target, edges.source)

    @cached_property
    def _members(self) -> _Lists:
        ops = np.flatnonzero(self.table.group >= 0)
        return _Lists.of_pairs(self.table.group[ops], ops)


@dataclass(frozen=True)
class _Lists:
    """Values by key, sorted once."""

    keys: Ints
    values: Ints

    @classmethod
    def of_pairs(cls, keys: Ints, values: Ints) -> _Lists:
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], values[order])

    def of(self, key: int) -> Ints:
        first, last = np.searchsorted(self.keys, [key, key + 1])
        return self.values[first:last]


def _hops(table: Table, path: Iterable[int], start_s: Floats, end_s: Floats) -> Iterable[Hop]:
    """The path's ops, those of one rank, lane and kind that follow each other put together."""
    hop: Hop | None = None
    for op in path:
        rank, lane = int(table.rank[op]), Lane(int(table.lane[op])).word
        kind, word = Kind(int(table.kind[op])).name, table.word(op)
        began_s, ended_s = float(start_s[op]), float(end_s[op])
        if hop is not None and (hop.rank, hop.lane, hop.kind) == (rank, lane, kind):
            hop = Hop(rank, lane, kind, hop.first, word, hop.ops + 1, hop.start_s, ended_s)
            continue
        if hop is not None:
            yield hop
        hop = Hop(rank, lane, kind, word, word, 1, began_s, ended_s)
    if hop is not None:
        yield hop


def totals_of(spans: Iterable[Span]) -> dict[str, tuple[int, float]]:
    """{kind: (ops, seconds)} of a timeline's spans."""
    sums: dict[str, tuple[int, float]] = {}
    for span in spans:
        kind = kind_of(span.word)
        ops, time_s = sums.get(kind, (0, 0.0))
        sums[kind] = ops + 1, time_s + span.length_s
    return sums
