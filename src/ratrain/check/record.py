"""What was compared on one rank: for each operator how often, the worst, and where that was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ratrain.check.bounds import is_declared
from ratrain.check.call import Call
from ratrain.check.compare import Difference
from ratrain.check.kept import keep_call
from ratrain.check.rows import Row, Where


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
