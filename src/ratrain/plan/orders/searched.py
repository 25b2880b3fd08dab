"""An order found by search, made ready: proved and simulated as the job would run it from a file,
beside the named orders of the job, with what it gains and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ratrain.describe.job import JobSpec
from ratrain.errors import Infeasible, ProgramError, RatrainError
from ratrain.plan.case.case import Case
from ratrain.plan.case.of_layout import case_of
from ratrain.plan.layout.fixed_orders import order_for_now
from ratrain.plan.orders.clock import Order, OrderClock, Orders
from ratrain.plan.orders.schedules import ComparedSchedule, Comparison, as_named, layout_for
from ratrain.plan.orders.search import Effort, Found, Limits, Progress, search_orders
from ratrain.program.kind import Lane
from ratrain.program.settled import Proved
from ratrain.program.skeletons import SKELETONS
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import Simulation

MOST_OPS = 200_000
"""The most ops of a program whose order is searched: every order is timed whole."""


@dataclass(frozen=True)
class SearchedOrder:
    """The order, on the job that takes it out of a file."""

    job: JobSpec  # of the strategy and layout that it was searched on; its skeleton is left to name
    csv: str
    by_unit: bool  # its orders are of units: ranks hold the whole model
    orders: Orders
    turned: Mapping[tuple[int, Lane], Order]  # lanes of transfers with turns of their own
    simulation: Simulation
    named: ComparedSchedule  # the fastest named order that fits
    named_orders: Orders
    named_simulation: Simulation
    same_passes: tuple[str, float] | None = (
        None  # the fastest named order with the searched one's passes
    )

    @property
    def step_s(self) -> float:
        return self.simulation.step_time_s

    def gain_over(self, step_s: float) -> float:
        """The part of another order's step that it takes less."""
        return 1 - self.step_s / step_s


@dataclass(frozen=True)
class SearchResult:
    """What a search led to: the order, where it is faster than all that have a name."""

    order: SearchedOrder | None
    effort: Effort


def search_for(
    comparison: Comparison, limits: Limits, seed: int, progress: Progress | None = None
) -> SearchResult:
    """Searches an order for a compared job, from the fastest named orders that fit."""
    job = comparison.job
    rows = [row for row in comparison.rows if row.predicted is not None and row.predicted.fits]
    if not rows:
        raise Infeasible(
            "no named order fits, and a search begins with one that does",
            place=f"{job.path or 'job'} [schedule] memory_budget",
            fix="raise the budget, or let `ratrain plan` look for a layout that fits",
        )
    cases = [_case(comparison, row) for row in _beginnings(comparison, rows)]
    for case in cases:
        _require_searchable(case)
    best, effort = search_orders(cases, limits, seed, progress)
    order = None if best is None else _ready(best, _case(comparison, rows[0]), rows[0])
    return SearchResult(order, effort)


def _require_searchable(case: Case) -> None:
    if case.proved.short.setup.period > 1:
        raise ProgramError(
            "a program of several steps has an order that cannot be searched",
            place=f"{case.job.path or 'job'} [schedule] average_every",
            fix="leave average_every out",
        )
    require_short(case.proved, f"{case.job.path or 'job'} [batch] sequences")


def require_short(proved: Proved, place: str) -> None:
    """Refuses a program of which too few orders could be timed."""
    if proved.program_ops > MOST_OPS:
        raise ProgramError(
            f"the program has {proved.program_ops:,} ops; a search times orders of at most "
            f"{MOST_OPS:,}",
            place=place,
            fix="search with fewer micro-batches",
        )


def _beginnings(comparison: Comparison, rows: list[ComparedSchedule]) -> Iterator[ComparedSchedule]:
    """The fastest for each number of stages per rank, and the job's own strategy."""
    stages: set[int] = set()
    for row in rows:
        assert row.predicted is not None
        if row.predicted.stages_per_rank not in stages or row.name == comparison.job.schedule.name:
            yield row
        stages.add(row.predicted.stages_per_rank)


def _case(comparison: Comparison, row: ComparedSchedule) -> Case:
    job = as_named(comparison.job, row.name)
    return case_of(replace(job, layout=layout_for(job, comparison.layout, row.order)))


def _ready(best: Found, named: Case, row: ComparedSchedule) -> SearchedOrder | None:
    """The order as the job takes it from a file; None where it is no faster than one with a name,
    or the job would not fit with it."""
    job = best.case.job
    with order_for_now(best.csv) as skeleton:
        simulation = _simulated(job, skeleton)
    order = if_faster(best, job, simulation, (named, row))
    return order and replace(order, same_passes=_same_passes(job))


def if_faster(
    best: Found,
    job: JobSpec,
    simulation: Simulation | None,
    beside: tuple[Case, ComparedSchedule],
) -> SearchedOrder | None:
    """An order that was simulated as a whole program; None where that was not possible, or it is no
    faster than the named order `beside` it."""
    named, row = beside
    before = simulate_proved(named.proved, named.costs)
    if simulation is None or simulation.step_time_s >= before.step_time_s:
        return None
    return SearchedOrder(
        job,
        best.csv,
        best.by_unit,
        best.orders,
        best.turned,
        simulation,
        row,
        _computed(named),
        before,
    )


def _computed(case: Case) -> Orders:
    """What the places of a case's pipeline compute, or where replicas differ every rank."""
    apart = case.apart
    clock = OrderClock(case.program, case.costs, apart=apart)
    return clock.orders[: clock.places]


def _simulated(job: JobSpec, skeleton: str) -> Simulation | None:
    """The job with another compute order; None where it cannot run, or does not fit."""
    try:
        case = case_of(replace(job, schedule=replace(job.schedule, skeleton=skeleton)))
    except RatrainError:
        return None
    return simulate_proved(case.proved, case.costs) if case.proved.verdict.sound else None


def _same_passes(job: JobSpec) -> tuple[str, float] | None:
    """The fastest order with a name on the job's own passes and layout."""
    names = [name for name, skeleton in SKELETONS.items() if skeleton.fixed is None]
    times = {name: ran.step_time_s for name in names if (ran := _simulated(job, name)) is not None}
    return min(times.items(), key=lambda item: item[1], default=None)
