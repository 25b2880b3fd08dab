"""The strategy that a job names, with its options, and what it cannot be combined with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.plan.fixed_orders import ENDING, fixed_order
from ratrain.plan.gradient_groups import require_collective
from ratrain.plan.sizes import trains_tied
from ratrain.program.strategies import Strategy, combined, strategy


def strategy_of(job: JobSpec) -> Strategy:
    """The strategy that a job names, with the options that the job sets."""
    file = str(job.path or "job")
    chosen = strategy(job.schedule.name, job.schedule.without, file=file)
    skeleton = job.schedule.skeleton
    if skeleton is not None and skeleton.endswith(ENDING):
        folder = job.path.parent if job.path else Path()
        skeleton = fixed_order(folder / skeleton)
    chosen = combined(chosen, skeleton, job.schedule.passes, file=file)
    require_collective(job.schedule.collective, file)
    if job.schedule.sharding is not None:
        chosen = replace(chosen, sharding=job.schedule.sharding)
    if job.schedule.average_every is not None:
        chosen = _averaging(job, chosen, file)
    if job.train.overflow == "unit":
        _require_units_alone(job, file)
    if job.schedule.recover_heads is not None:
        chosen = replace(chosen, recovers_heads=job.schedule.recover_heads)
    return chosen


def _require_units_alone(job: JobSpec, file: str) -> None:
    """Refuses to let units decide by themselves where some must decide together."""
    tensor = job.layout is not None and job.layout.tensor > 1
    reasons = {
        "clipping waits for all gradients anyway": job.train.clip_norm is not None,
        "both copies of a tied matrix must be updated, or neither": trains_tied(job),
        "all ranks of a tensor group must update a unit, or none": tensor,
    }
    for reason, holds in reasons.items():
        if holds:
            raise SpecError(
                f'overflow = "unit" cannot be used here: {reason}',
                place=f"{file} [train] overflow",
                fix="leave it out",
            )


def _averaging(job: JobSpec, strategy: Strategy, file: str) -> Strategy:
    """The strategy with every state whole on every replica, which trains alone between averages."""
    place = f"{file} [schedule] average_every"
    if job.train.clip_norm is not None or job.awaits_overflow:
        raise SpecError(
            "replicas that train independently have no global gradient norm to clip by, or to "
            "check fp16 "
            "with",
            place=place,
            fix='leave [train] clip_norm out, and in fp16 set overflow = "unit"',
        )
    if job.schedule.sharding or job.schedule.gradient_accumulation == "sharded":
        raise SpecError(
            "replicas that train independently hold all of their states",
            place=place,
            fix="leave sharding and sharded gradient_accumulation out",
        )
    every = job.checkpoint.every
    if every % (job.schedule.average_every or 1):
        raise SpecError(
            f"replicas are identical every {job.schedule.average_every} steps, but checkpoints "
            f"are saved "
            f"every {every}",
            place=f"{file} [checkpoint] every",
            fix=f"use a multiple of {job.schedule.average_every}",
        )
    return replace(strategy, sharding=0)


def require_tieable(job: JobSpec) -> None:
    """Refuses sharded gradients where both copies of a tied matrix need whole ones."""
    if trains_tied(job) and job.schedule.gradient_accumulation == "sharded":
        raise SpecError(
            f"{job.model.spec.name} ties its embedding and its head: adding their gradients takes "
            "whole gradients, which sharded accumulation does not keep",
            place=f"{job.path or 'job'} [schedule] gradient_accumulation",
            fix='set gradient_accumulation = "local"',
        )


def no_shards(job: JobSpec, level: int) -> SpecError:
    """The error of a job that wants gradients sharded where they are not."""
    return SpecError(
        f"{job.schedule.name} does not shard gradients (sharding level {level})",
        place=f"{job.path or 'job'} [schedule] gradient_accumulation",
        fix="set sharding to 2 or 3, or leave gradient_accumulation out",
    )
