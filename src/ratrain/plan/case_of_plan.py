"""The case of a plan file: by the way of all layouts, or of replicas that differ."""

from __future__ import annotations

from ratrain.plan.case import Case
from ratrain.plan.plan_file import Plan
from ratrain.plan.subject import case_of_subject, subject_of
from ratrain.plan.uneven_case import UnevenCase


def case_of_plan(plan: Plan, file: str) -> Case | UnevenCase:
    """The case of a plan, ready to prove and simulate."""
    return case_of_subject(subject_of(plan, file))
