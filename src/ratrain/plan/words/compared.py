"""Compute orders compared and searched: of a layout, whose schedules they are, or of a plan.

A job without a layout is planned first; where the stages or replicas of its plan differ, the orders
are compared on these, as for a plan file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratrain.describe.job import JobSpec
from ratrain.describe.lines import wrapped
from ratrain.plan.layout.plan import Plan
from ratrain.plan.orders.of_plan import PlanOrders, compare_orders, search_orders_of_plan
from ratrain.plan.orders.schedules import Comparison, Progress, compare_schedules
from ratrain.plan.orders.search import Limits
from ratrain.plan.orders.searched import SearchResult, search_for
from ratrain.plan.search.every_plan import every_plan
from ratrain.plan.words.schedules import comparison_json, comparison_text, row_json, rows_table
from ratrain.plan.words.searched import (
    effort_json,
    order_json,
    order_text,
    search_json,
    search_text,
    unsuccessful_text,
)

LaidOut = JobSpec | Plan
"""What orders are compared on: a job with a layout, or a plan."""
Compared = Comparison | PlanOrders


def laid_out(job: JobSpec, progress: Progress | None = None) -> LaidOut:
    """The job itself where it has a layout, else what `ratrain plan` writes for it."""
    if job.layout is not None:
        return job
    subject = every_plan(job, progress).chosen.subject()
    return subject if not subject.is_layout else subject.job


def compare(subject: LaidOut, file: Path, progress: Progress | None = None) -> Compared:
    """Every order with a name on a job or a plan, out of a file."""
    if isinstance(subject, Plan):
        return compare_orders(subject, file, progress)
    return compare_schedules(subject, progress)


def search_compared(
    compared: Compared, limits: Limits, seed: int, progress: Progress | None = None
) -> SearchResult:
    """Searches an order that is faster than all of these."""
    if isinstance(compared, PlanOrders):
        return search_orders_of_plan(compared, limits, seed, progress)
    return search_for(compared, limits, seed, progress)


def compared_text(compared: Compared) -> Iterator[str]:
    """One table in lines of at most 80 columns, and why some orders cannot run."""
    if isinstance(compared, PlanOrders):
        return orders_text(compared)
    return comparison_text(compared)


def compared_json(compared: Compared) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    if isinstance(compared, PlanOrders):
        return orders_json(compared)
    return comparison_json(compared)


def order_found_text(
    result: SearchResult, compared: Compared, asked: JobSpec, file: Path | None
) -> Iterator[str]:
    """What a search led to. `asked`: the job as its file has it; `file`: where the order was
    saved."""
    if isinstance(compared, PlanOrders):
        return searched_text(result, compared, file)
    return search_text(result, compared, asked, file)


def order_found_json(
    result: SearchResult, compared: Compared, asked: JobSpec, file: Path | None
) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    if isinstance(compared, PlanOrders):
        return searched_json(result, compared, file)
    return search_json(result, compared, asked, file)


def orders_text(orders: PlanOrders) -> Iterator[str]:
    """One table in lines of at most 80 columns, and why some orders cannot run the plan."""
    yield from orders.case.headline()
    yield ""
    yield from rows_table(orders.rows, orders.plan.strategy.skeleton, ("order", "the plan's order"))


def orders_json(orders: PlanOrders) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    case = orders.case
    return {
        "plan": case.facts(),
        "schedules": [row_json(row, case.tokens) for row in orders.rows],
    }


def searched_text(result: SearchResult, orders: PlanOrders, file: Path | None) -> Iterator[str]:
    """What a search led to. `file`: where the order was saved."""
    if result.order is None:
        yield from unsuccessful_text(result.effort)
        return
    yield from order_text(result.order, result.effort, orders.rows)
    if file is None:
        yield "Add --save FILE.csv to keep the order in a file that trains."
        return
    where = str(orders.file)
    if orders.planned:
        where = f"the plan file (`ratrain plan {orders.file} -o PLAN.json`)"
    yield from wrapped(
        f'Write "skeleton": "{_from_plan(file, orders)}" into {where}: the plan is then simulated '
        "and trained in this order."
    )


def searched_json(result: SearchResult, orders: PlanOrders, file: Path | None) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    body = effort_json(result)
    if result.order is not None:
        body["order"] = {
            **order_json(result.order, orders.rows, orders.case.tokens),
            "file": None if file is None else str(file),
            "skeleton": _from_plan(file or Path("order.csv"), orders),
        }
    return body


def _from_plan(file: Path, orders: PlanOrders) -> str:
    """A file's path as a plan names it: from the plan's own folder, which is the current one where
    the plan is in no file yet."""
    return os.path.relpath(file, Path() if orders.planned else orders.file.parent)
