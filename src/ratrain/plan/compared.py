"""Compute orders compared and searched: of a layout, whose schedules they are, or of a plan.

A job without a layout is planned first; where the stages or replicas of its plan differ, the orders
are compared on these, as for a plan file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratrain.describe.job import JobSpec
from ratrain.plan.every_plan import every_plan, file_of
from ratrain.plan.order_search import Limits
from ratrain.plan.plan_orders import PlanOrders, compare_orders, search_orders_of_plan
from ratrain.plan.plan_orders_words import (
    orders_json,
    orders_text,
    searched_json,
    searched_text,
)
from ratrain.plan.schedules import (
    Comparison,
    Progress,
    compare_schedules,
    comparison_json,
    comparison_text,
)
from ratrain.plan.search import Tried
from ratrain.plan.searched_order import SearchResult, search_for
from ratrain.plan.searched_words import search_json, search_text
from ratrain.plan.uneven_read import uneven_plan
from ratrain.plan.uneven_setup import UnevenPlan

LaidOut = JobSpec | UnevenPlan
"""What orders are compared on: a job with a layout, or a plan."""
Compared = Comparison | PlanOrders


def laid_out(job: JobSpec, progress: Progress | None = None) -> LaidOut:
    """The job itself where it has a layout, else what `ratrain plan` writes for it."""
    if job.layout is not None:
        return job
    chosen = every_plan(job, progress).chosen
    if isinstance(chosen, Tried):
        return chosen.candidate.job
    return uneven_plan(file_of(chosen), str(job.path or "job"), chosen.plan.job)


def compare(subject: LaidOut, file: Path, progress: Progress | None = None) -> Compared:
    """Every order with a name on a job or a plan, out of a file."""
    if isinstance(subject, UnevenPlan):
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
