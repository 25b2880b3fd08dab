"""The case of a plan file: by the way of all layouts, or of replicas that differ."""

from __future__ import annotations

from ratrain.plan.case import Case, case_of_candidate
from ratrain.plan.plan_file import Plan, is_uneven, to_candidate
from ratrain.plan.uneven_case import UnevenCase
from ratrain.plan.uneven_setup import uneven_plan


def case_of_plan(plan: Plan, file: str) -> Case | UnevenCase:
    """The case of a plan, ready to prove and simulate."""
    if is_uneven(plan):
        return UnevenCase(uneven_plan(plan, file))
    return case_of_candidate(to_candidate(plan, file))
