"""Every compute order on one job, and one found by search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratrain.api.jobs import Job, job_of, load_job
from ratrain.api.shown import Shown
from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.plan.orders import (
    Comparison,
    Limits,
    Predicted,
    SearchedOrder,
    SearchResult,
    compare,
    laid_out,
    search_compared,
)
from ratrain.plan.words import (
    compared_json,
    compared_text,
    order_found_json,
    order_found_text,
    settings,
)
from ratrain.readers.writing import write_whole


@dataclass(frozen=True, repr=False)
class OrderSearch(Shown):
    """What a search for a compute order led to."""

    result: SearchResult
    comparison: Comparison
    asked: JobSpec  # the job as it was given, perhaps without a layout
    overrides: tuple[str, ...]

    @property
    def improved(self) -> bool:
        """Whether an order was found that is faster than every named one that fits."""
        return self.result.order is not None

    @property
    def step_time_s(self) -> float:
        """The simulated step of the order found, or else of the fastest named one."""
        order = self.result.order
        if order is not None:
            return order.step_s
        fastest_s = self.comparison.fastest_s
        assert fastest_s is not None  # a search begins with one that fits
        return fastest_s

    def save(self, path: str | Path) -> Path:
        """Writes the order as a CSV file, which a job takes as `[schedule] skeleton`."""
        order = self._order()
        file = Path(path)
        if file.suffix != ".csv":
            raise SpecError(
                f"{file} does not end in .csv, so a job would take it for the name of an order",
                place="save(path)",
                fix=f'write save("{file.with_suffix(".csv")}")',
            )
        write_whole(file, order.csv)
        return file

    def job(self, path: str | Path) -> Job:
        """The job that runs the order found: saves it, and loads the job's file with it."""
        order = self._order()
        if self.asked.path is None:
            raise SpecError("the job has no file to be loaded from", place="job")
        if self.comparison.plan is not None:
            raise SpecError(
                "the order is of a plan whose stages or replicas differ: a plan file takes it",
                place=str(self.asked.path),
                fix='save the order and `ratrain.plan(job).best`, and write "skeleton" into the '
                "plan file",
            )
        file = self.save(path)
        return load_job(self.asked.path, *self.overrides, *settings(order, self.asked, file))

    def to_dict(self) -> dict[str, Any]:
        """Every figure, with its unit in its key, as `ratrain schedules --search --json` has it."""
        return order_found_json(self.result, self.comparison, self.asked, None)

    def _order(self) -> SearchedOrder:
        if self.result.order is None:
            raise SpecError(
                "the search found no order faster than the named ones",
                place="search_order",
                fix="check `improved` first, or search longer: seconds=...",
            )
        return self.result.order

    def _lines(self) -> list[str]:
        return list(order_found_text(self.result, self.comparison, self.asked, None))


@dataclass(frozen=True, repr=False)
class Schedules(Shown):
    """All schedules on one layout, or all compute orders on a plan whose stages or replicas differ:
    those that fit first, each group fastest first."""

    comparison: Comparison
    asked: JobSpec
    overrides: tuple[str, ...]

    @property
    def predicted(self) -> dict[str, Predicted]:
        """Of each schedule that can run the job: its step, memory, and whether it fits."""
        rows = self.comparison.rows
        return {row.name: row.predicted for row in rows if row.predicted is not None}

    def search(
        self,
        seconds: float = 30.0,
        *,
        evaluations: int | None = None,
        seed: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> OrderSearch:
        """Searches a compute order faster than all of these, for `seconds` at most. The same
        number of `evaluations` and the same seed find the same order."""
        limits = Limits(seconds, evaluations)
        result = search_compared(self.comparison, limits, seed, progress)
        return OrderSearch(result, self.comparison, self.asked, self.overrides)

    def to_dict(self) -> dict[str, Any]:
        """Every figure, with its unit in its key, as `ratrain schedules --json` prints them."""
        return compared_json(self.comparison)

    def _lines(self) -> list[str]:
        return list(compared_text(self.comparison))


def schedules(
    job: Job | str | Path, *, progress: Callable[[int, int], None] | None = None
) -> Schedules:
    """Every compute order with its passes on a job, each proved and simulated at full size. A job
    without a layout is planned first. `progress` is called with plans simulated and their number at
    most, then with schedules done and their number."""
    given = job_of(job)
    comparison = compare(laid_out(given.spec, progress), progress)
    return Schedules(comparison, given.spec, given.overrides)
