"""Compute orders on the replicas of a plan: those with a name, and one found by search.

Each order has the plan's own replicas, recovery and passes. In an order found by search every
replica that differs from the others has an order of its own; the file says all of them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ratrain.errors import Infeasible, ProgramError, RatrainError, SpecError
from ratrain.plan.case.case import Case
from ratrain.plan.file.checks import require_runnable
from ratrain.plan.layout.fixed_orders import fixed_order, order_for_now
from ratrain.plan.layout.further_orders import in_order
from ratrain.plan.layout.plan import Plan, has_members
from ratrain.plan.orders.schedules import MOST_OPS as MOST_COMPARED
from ratrain.plan.orders.schedules import (
    ComparedSchedule,
    Comparison,
    Progress,
    in_sequence,
    predicted_of,
)
from ratrain.plan.orders.search import Limits, search_orders
from ratrain.plan.orders.searched import SearchResult, if_faster, require_short
from ratrain.program.repeating import compute_ops
from ratrain.program.skeletons import SKELETONS
from ratrain.readers.place import Place
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import Simulation


def compare_orders(plan: Plan, file: Path, progress: Progress | None = None) -> Comparison:
    """The `Comparison` of a plan."""
    names = [name for name, skeleton in SKELETONS.items() if skeleton.fixed is None]
    rows = in_sequence(names, lambda name: _compared(plan, file, name), progress)
    return Comparison(plan.job, file, rows, plan)


def in_named_order(plan: Plan, file: Path, name: str) -> Plan:
    """The plan in an order; an error where its replicas cannot be in it."""
    ordered = plan.in_order_of(in_order(plan.job, name))
    require_runnable(ordered, Place(str(file), form="json"))
    return ordered


def _compared(plan: Plan, file: Path, name: str) -> ComparedSchedule:
    doc = SKELETONS[name].doc
    try:
        case = Case(in_named_order(plan, file, name))
        _require_written_out(case, name)
        return ComparedSchedule(name, name, doc, predicted_of(case), "")
    except RatrainError as error:
        return ComparedSchedule(name, name, doc, None, error.what)


def _require_written_out(case: Case, name: str) -> None:
    """Refuses an order without a repeating part where it is very long."""
    ops = compute_ops(case.setup)
    repeats = all(
        SKELETONS[name].stride(replica.layout.pipeline, replica.layout.virtual) is not None
        for replica in case.plan.replicas
    )
    if not repeats and ops > MOST_COMPARED:
        raise ProgramError(
            f"the order {name} has no repeating part, so all of its {ops:,} compute ops would have "
            f"to be written out; a comparison allows {MOST_COMPARED:,}"
        )


def search_orders_of_plan(
    plan: Plan, orders: Comparison, limits: Limits, seed: int, progress: Progress | None = None
) -> SearchResult:
    """Searches an order for a compared plan, from its named orders."""
    fitting = [row for row in orders.rows if row.predicted is not None and row.predicted.fits]
    _require_searchable(plan, orders.file)
    if not fitting:
        raise Infeasible(
            "no named order fits, and a search begins with one that does",
            place=f"{orders.file} memory_budget",
            fix="raise the budget, or let `ratrain plan` look for a plan that fits",
        )
    named = Case(in_named_order(plan, orders.file, fitting[0].order))
    require_short(named.proved, f"{orders.file} sequences")
    best, effort = search_orders([named], limits, seed, progress)
    if best is None:
        return SearchResult(None, effort)
    with order_for_now(best.csv) as skeleton:  # as the plan takes it from a file
        simulation = _simulated(plan, orders.file, skeleton)
    order = if_faster(best, plan.job, simulation, (named, fitting[0]))
    return SearchResult(order, effort)


def _require_searchable(plan: Plan, file: Path) -> None:
    """Refuses plans whose ranks do not each compute every micro-batch of one stage, one by one."""
    refused = (
        (has_members(plan), "stages of several members", "members"),
        (any(r.joined for r in plan.replicas), "stages that differ in micro_batch", "micro_batch"),
        (any(r.layout.virtual > 1 for r in plan.replicas), "several stages on a device", "stages"),
        (plan.job.schedule.average_every is not None, "steps that are averaged", "average_every"),
    )
    for is_so, what, key in refused:
        if is_so:
            raise SpecError(
                f"an order cannot be searched for {what} yet",
                place=f"{file} {key}",
                fix="use a named order, or another plan",
            )


def _simulated(plan: Plan, file: Path, skeleton: str) -> Simulation | None:
    """The plan in the order of a file; None where it cannot run, or does not fit."""
    ordered = replace(
        plan,
        job=in_order(plan.job, skeleton),
        strategy=replace(plan.strategy, skeleton=fixed_order(Path(skeleton))),
    )
    try:
        require_runnable(ordered, Place(str(file), form="json"))
        case = Case(ordered)
        return simulate_proved(case.proved, case.costs) if case.proved.verdict.sound else None
    except RatrainError:
        return None
