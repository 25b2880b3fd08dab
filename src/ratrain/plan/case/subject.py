"""A plan file as a plan, and a plan as a case, whether a layout can say it or not."""

from __future__ import annotations

from ratrain.describe.job import JobSpec
from ratrain.plan.case.of_layout import case_of_candidate
from ratrain.plan.case.of_replicas import uneven_case
from ratrain.plan.case.ready import Case, Subject
from ratrain.plan.file.form import Plan, is_uneven
from ratrain.plan.file.layout import to_candidate
from ratrain.plan.file.reading import uneven_plan
from ratrain.plan.file.uneven import UnevenPlan


def subject_of(plan: Plan, file: str, planned_for: JobSpec | None = None) -> Subject:
    """What a plan file describes. `planned_for`: the job that it was planned for, where that is
    known; else the file says what it is about."""
    read = uneven_plan if is_uneven(plan) else to_candidate
    return read(plan, file, planned_for)


def case_of_subject(subject: Subject) -> Case:
    """The subject, ready to prove and simulate."""
    if isinstance(subject, UnevenPlan):
        return uneven_case(subject)
    return case_of_candidate(subject)


def case_of_plan(plan: Plan, file: str) -> Case:
    """The case of a plan file."""
    return case_of_subject(subject_of(plan, file))
