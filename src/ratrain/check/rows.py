"""Rows of a comparison: what was compared, how often, how far off the worst was, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

FOLDER = "check"
"""In a run's folder: a file a rank, and the calls that were kept."""
MOST = 1e9
"""What is farther off than this many times what is allowed counts as this far."""


class Off(Protocol):
    """How far results are off: see `compare.Difference`."""

    @property
    def times(self) -> float: ...

    @property
    def largest(self) -> float: ...

    @property
    def cosine(self) -> float: ...

    @property
    def wrong(self) -> bool: ...


FIRST_WRONG = 20
"""Wrong calls of one operator, or units, that are listed; all are counted."""


@dataclass(frozen=True)
class Where:
    """An op of a step: which kind (F, B, ...), of which unit and micro-batch, on which rank."""

    step: int = 1  # from 1
    op: str = ""
    unit: str = ""
    micro_batch: int = -1
    rank: int = 0
    micro_batches: int = 1

    @property
    def words(self) -> str:
        """ "B of unit 1, micro-batch 0, step 1, rank 0"."""
        parts = [f"{self.op or '?'} of unit {self.unit}" if self.unit else self.op or "no op"]
        if self.micro_batch >= 0:
            last = self.micro_batch + self.micro_batches - 1
            joined = self.micro_batches > 1
            parts.append(
                f"micro-batches {self.micro_batch} to {last}"
                if joined
                else f"micro-batch {self.micro_batch}"
            )
        return ", ".join([*parts, f"step {self.step}", f"rank {self.rank}"])


@dataclass(frozen=True)
class Wrong:
    """One comparison that failed; `order`: how many came before it on the rank."""

    where: Where
    times: float
    order: int


@dataclass
class Row:
    """All comparisons of one operator in one kind of op and dtype, or of one unit."""

    name: str
    op: str
    dtype: str
    rule: str  # "declared", "measured", or "scatter" of units
    calls: int = 0
    wrong: int = 0
    times: float = 0.0
    largest: float = 0.0
    cosine: float = 1.0
    at: Where = field(default_factory=Where)
    wrote: int = 0  # calls that changed an argument that is none of their results
    first: list[Wrong] = field(default_factory=list[Wrong])
    kept: str = ""  # the folder of the worst wrong call, below the record's

    def add(self, difference: Off, where: Where, order: int) -> bool:
        """Counts a comparison; whether it is the worst so far."""
        self.calls += 1
        self.cosine = min(self.cosine, difference.cosine)
        self.largest = max(self.largest, difference.largest)
        if difference.wrong:
            self.wrong += 1
            if len(self.first) < FIRST_WRONG:
                self.first.append(Wrong(where, difference.times, order))
        if difference.times <= self.times and self.calls > 1:
            return False
        self.times, self.at = difference.times, where
        return True
