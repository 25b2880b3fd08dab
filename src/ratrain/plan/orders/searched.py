"""An order found by search, made ready: proved and simulated as the job would run it from a file,
beside the named orders of the job, with what it gains and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ratrain.describe.job import JobSpec
from ratrain.errors import Infeasible, ProgramError, RatrainError, SpecError
from ratrain.plan.case.case import Case
from ratrain.plan.layout.fixed_orders import order_for_now
from ratrain.plan.layout.plan import has_members
from ratrain.plan.orders.clock import Order, OrderClock, Orders
from ratrain.plan.orders.schedules import ComparedSchedule, Comparison
from ratrain.plan.orders.search import Effort, Limits, Progress, search_orders
from ratrain.program.kind import Lane
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


def search_compared(
    compared: Comparison, limits: Limits, seed: int, progress: Progress | None = None
) -> SearchResult:
    """Searches an order that is faster than all of these, from the fastest that fit. In a plan
    every replica that differs from the others has an order of its own."""
    rows = compared.fitting
    if not rows:
        raise Infeasible(
            "no named order fits, and a search begins with one that does",
            place=compared.place("schedule", "memory_budget"),
            fix="raise the budget, or let `ratrain plan` look for a plan that fits",
        )
    cases = [compared.case(row.name) for row in _beginnings(compared)]
    for case in cases:
        _require_searchable(compared, case)
    best, effort = search_orders(cases, limits, seed, progress)
    if best is None:
        return SearchResult(None, effort)
    job, named = best.case.job, compared.case(rows[0].name)
    with order_for_now(best.csv) as skeleton:  # as it is taken from a file
        simulation = _simulated(compared, job, skeleton)
    before = simulate_proved(named.proved, named.costs)
    if simulation is None or simulation.step_time_s >= before.step_time_s:
        return SearchResult(None, effort)
    order = SearchedOrder(
        job,
        best.csv,
        best.by_unit,
        best.orders,
        best.turned,
        simulation,
        rows[0],
        _computed(named),
        before,
        _same_passes(compared, job) if compared.plan is None else None,
    )
    return SearchResult(order, effort)


def _beginnings(compared: Comparison) -> Iterator[ComparedSchedule]:
    """The fastest for each number of stages per rank, and a job's own strategy."""
    stages: set[int] = set()
    for row in compared.fitting:
        assert row.predicted is not None
        own = compared.plan is None and row.name == compared.job.schedule.name
        if row.predicted.stages_per_rank not in stages or own:
            yield row
        stages.add(row.predicted.stages_per_rank)


def _require_searchable(compared: Comparison, case: Case) -> None:
    """Refuses plans whose ranks do not each compute every micro-batch of one stage one by one, and
    programs of which too few orders could be timed."""
    plan = case.plan
    looped = compared.plan is not None and any(r.layout.virtual > 1 for r in plan.replicas)
    refused = (
        (has_members(plan), "stages of several members", "members"),
        (any(r.joined for r in plan.replicas), "stages that differ in micro_batch", "micro_batch"),
        (looped, "several stages on a device", "stages"),
        (plan.job.schedule.average_every is not None, "several steps", "average_every"),
    )
    for is_so, what, key in refused:
        if is_so:
            raise SpecError(
                f"an order cannot be searched for {what} yet",
                place=compared.place("schedule", key),
                fix="use a named order, or another plan",
            )
    ops = case.proved.program_ops
    if ops > MOST_OPS:
        raise ProgramError(
            f"the program has {ops:,} ops; a search times orders of at most {MOST_OPS:,}",
            place=compared.place("batch", "sequences"),
            fix="search with fewer micro-batches",
        )


def _computed(case: Case) -> Orders:
    """What the places of a case's pipeline compute, or where replicas differ every rank."""
    clock = OrderClock(case.program, case.costs, apart=case.apart)
    return clock.orders[: clock.places]


def _simulated(compared: Comparison, job: JobSpec, order: str) -> Simulation | None:
    """The job or plan in another order; None where it cannot run, or does not fit."""
    try:
        case = compared.in_order(job, order)
        return simulate_proved(case.proved, case.costs) if case.proved.verdict.sound else None
    except RatrainError:
        return None


def _same_passes(compared: Comparison, job: JobSpec) -> tuple[str, float] | None:
    """The fastest order with a name on the job's own passes and layout."""
    names = [name for name, skeleton in SKELETONS.items() if skeleton.fixed is None]
    ran = {name: _simulated(compared, job, name) for name in names}
    times = {name: each.step_time_s for name, each in ran.items() if each is not None}
    return min(times.items(), key=lambda item: item[1], default=None)
