"""A plan, whether a layout can say it or not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ratrain.describe.job import JobSpec
from ratrain.plan.case.case import Case, case_of_candidate
from ratrain.plan.case.uneven import UnevenCase
from ratrain.plan.file.form import Plan, is_uneven
from ratrain.plan.file.layout import to_candidate
from ratrain.plan.file.reading import uneven_plan
from ratrain.plan.file.uneven import UnevenPlan, UnevenReplica
from ratrain.plan.layout.candidate import Candidate
from ratrain.program.replicas import Recovery

Subject = Candidate | UnevenPlan
"""A plan: replicas divided alike, or any."""


def subject_of(plan: Plan, file: str, planned_for: JobSpec | None = None) -> Subject:
    """What a plan file describes. `planned_for`: the job that it was planned for, where that is
    known; else the file says what it is about."""
    read = uneven_plan if is_uneven(plan) else to_candidate
    return read(plan, file, planned_for)


def case_of_subject(subject: Subject) -> Case | UnevenCase:
    """The subject, ready to prove and simulate."""
    if isinstance(subject, UnevenPlan):
        return UnevenCase(subject)
    return case_of_candidate(subject)


def keeping_all(subject: Subject, ranks: Collection[int]) -> Subject:
    """The plan whose stages on these program ranks keep every activation. Where replicas are
    divided alike, so do these stages of every replica."""
    first_rank = subject.setup.first_rank
    if isinstance(subject, UnevenPlan):
        replicas = [
            _keeping(replica, {rank - first for rank in ranks})
            for first, replica in zip(first_rank, subject.replicas, strict=True)
        ]
        return replace(subject, replicas=tuple(replicas))
    pipeline = subject.layout.pipeline
    recovery = _kept(subject.recovery, pipeline, {rank % pipeline for rank in ranks})
    return replace(subject, recovery=recovery)


def _keeping(replica: UnevenReplica, ranks: Collection[int]) -> UnevenReplica:
    recovery = tuple(
        Recovery.NONE if rank in ranks else mode
        for (_, rank), mode in zip(replica.held, replica.recovery, strict=True)
    )
    return replace(replica, recovery=recovery)


def _kept(
    recovery: tuple[Recovery, ...], pipeline: int, ranks: Collection[int]
) -> tuple[Recovery, ...]:
    """The recovery of stages, none on some ranks of the pipeline."""
    return tuple(
        Recovery.NONE if stage % pipeline in ranks else mode for stage, mode in enumerate(recovery)
    )


def case_of_plan(plan: Plan, file: str) -> Case | UnevenCase:
    """The case of a plan, ready to prove and simulate."""
    return case_of_subject(subject_of(plan, file))
