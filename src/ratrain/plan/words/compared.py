"""Compute orders compared and searched: of a layout, whose schedules they are, or of a plan.

A job without a layout is planned first; where the stages or replicas of its plan differ, the orders
are compared on these, as for a plan file.
"""

from __future__ import annotations

from pathlib import Path

from ratrain.describe.job import JobSpec
from ratrain.plan.layout.plan import Plan
from ratrain.plan.orders.of_plan import compare_orders, search_orders_of_plan
from ratrain.plan.orders.schedules import Comparison, Progress, compare_schedules
from ratrain.plan.orders.search import Limits
from ratrain.plan.orders.searched import SearchResult, search_for
from ratrain.plan.search.every_plan import every_plan

LaidOut = JobSpec | Plan
"""What orders are compared on: a job with a layout, or a plan."""


def laid_out(job: JobSpec, progress: Progress | None = None) -> LaidOut:
    """The job itself where it has a layout, else what `ratrain plan` writes for it."""
    if job.layout is not None:
        return job
    subject = every_plan(job, progress).chosen.subject()
    return subject if not subject.is_layout else subject.job


def compare(subject: LaidOut, file: Path, progress: Progress | None = None) -> Comparison:
    """Every order with a name on a job or a plan, out of a file."""
    if isinstance(subject, Plan):
        return compare_orders(subject, file, progress)
    return compare_schedules(subject, progress)


def search_compared(
    compared: Comparison, limits: Limits, seed: int, progress: Progress | None = None
) -> SearchResult:
    """Searches an order that is faster than all of these."""
    if compared.plan is not None:
        return search_orders_of_plan(compared.plan, compared, limits, seed, progress)
    return search_for(compared, limits, seed, progress)
