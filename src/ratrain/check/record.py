"""What was compared on one rank: for each operator how often, the worst, and where that was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ratrain.check.bounds import is_declared
from ratrain.check.call import Call
from ratrain.check.compare import Difference
from ratrain.check.kept import keep_call

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

    def add(self, difference: Difference, where: Where, order: int) -> bool:
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


class Record:
    """What a rank compared; lanes add to it at once. `folder`: where worst calls are kept."""

    def __init__(self, folder: Path | None, device: str) -> None:
        self._folder, self._device = folder, device
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, ...], Row] = {}
        self._order = 0
        self.uncompared: dict[str, int] = {}

    def keep_in(self, folder: Path) -> None:
        """Where worst calls are kept from now on."""
        self._folder = folder

    def add_call(
        self, call: Call, difference: Difference, where: Where, *, wrote: bool, results: Any
    ) -> None:
        """One operator's call. `results`: what the device made, kept where it is wrong."""
        dtype = str(call.arithmetic.dtype).removeprefix("torch.")
        rule = "declared" if is_declared(call.family) else "measured"
        with self._lock:
            row = self._row(call.name, where.op, dtype, rule)
            worst = row.add(difference, where, self._next())
            row.wrote += wrote
            if worst and difference.wrong and self._folder is not None:
                name = f"{call.name}-{where.op or 'none'}-{dtype}".replace("/", "_")
                row.kept = name
                keep_call(self._folder / name, call, results, self._device, asdict(where))

    def add_unit(self, name: str, what: str, difference: Difference, where: Where) -> None:
        """One comparison of a unit; `what`: its output, its input's gradient, its weights'."""
        with self._lock:
            self._row(f"unit {name}", what, "", "scatter").add(difference, where, self._next())

    def skip(self, name: str) -> None:
        """One call that cannot be compared."""
        with self._lock:
            self.uncompared[name] = self.uncompared.get(name, 0) + 1

    @property
    def rows(self) -> list[Row]:
        """One for each operator in each kind of op and dtype, and for each result of a unit."""
        return list(self._rows.values())

    def body(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "device": self._device,
            "rows": [asdict(row) for row in self.rows],
            "uncompared": self.uncompared,
        }

    def _row(self, name: str, op: str, dtype: str, rule: str) -> Row:
        return self._rows.setdefault((name, op, dtype, rule), Row(name, op, dtype, rule))

    def _next(self) -> int:
        self._order += 1
        return self._order


WhereOf = Callable[[Any, int], Where]
"""Of an op and its step."""
