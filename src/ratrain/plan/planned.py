"""A job without a layout, planned; an `Infeasible` that says the cheapest way out otherwise."""

from __future__ import annotations

from ratrain.describe.job import JobSpec
from ratrain.errors import Infeasible
from ratrain.plan.misfit import nothing_fits
from ratrain.plan.search import Progress, Search, search


def planned(job: JobSpec, progress: Progress | None = None) -> Search:
    """The `Search` of a job, with at least one plan that is proved to fit."""
    found = search(job, progress)
    if found.tried:
        return found
    if found.fitting:  # the bill is an upper bound of the proof, so this is a defect of ours
        raise Infeasible(
            "closed formulas say that plans fit, the verifier proves none",
            place=str(job.path or "job"),
            fix="give a smaller memory_budget, and report this job",
        )
    raise nothing_fits(found)
