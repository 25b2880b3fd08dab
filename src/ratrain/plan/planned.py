"""A job without a layout, planned; an `Infeasible` that says the cheapest way out otherwise."""

from __future__ import annotations

from ratrain.describe.job import JobSpec
from ratrain.errors import Infeasible
from ratrain.plan.buckets import in_buckets
from ratrain.plan.job_strategy import strategy_of
from ratrain.plan.misfit import nothing_fits
from ratrain.plan.search import Progress, Search, search


def planned(job: JobSpec, progress: Progress | None = None) -> Search:
    """The `Search` of a job, with at least one plan that is proved to fit. Where none is, gradients
    in buckets are tried too."""
    result = search(job, progress)
    if result.tried:
        return result
    bucketed = in_buckets(job, strategy_of(job))
    if bucketed is not None:
        other = search(bucketed, progress)
        if other.tried:
            return other
    if result.fitting:
        raise Infeasible(
            f"by closed formula {result.fitting:,} plans fit, but the verifier could prove none of "
            f"the best {result.simulated}",
            place=str(job.path or "job"),
            fix="set a smaller memory_budget, so that plans that need less are tried, or use "
            "another schedule",
        )
    raise nothing_fits(result)
