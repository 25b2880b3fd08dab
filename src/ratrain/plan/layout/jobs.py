"""A job file read, with the names that this room and the program room know checked too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ratrain.cost.algorithms import DIRECT
from ratrain.describe.job import JobSpec, ScheduleSpec
from ratrain.describe.job_checks import Check
from ratrain.describe.job_file import job_of_file
from ratrain.errors import SpecError
from ratrain.plan.layout.links import require_collective
from ratrain.plan.layout.orders import ENDING, fixed_order
from ratrain.plan.layout.sizes import trains_tied
from ratrain.program.strategies import STRATEGIES, Strategy, combined, strategy
from ratrain.readers.faults import Faults
from ratrain.readers.place import Place


def load_job(path: Path | str, overrides: Sequence[str] = ()) -> JobSpec:
    """The job of a file, every choice resolved and every number checked against the others.
    `overrides`: values in place of the file's, as `--set` has them (see describe/overrides.py)."""
    return job_of_file(Path(path), overrides, _NAMES, keeps_layout=True)


def load_job_to_plan(path: Path | str, overrides: Sequence[str] = ()) -> JobSpec:
    """The job of a file without its [layout], which must be one but need not suit the rest: another
    is looked for."""
    return job_of_file(Path(path), overrides, _NAMES, keeps_layout=False)


def _check_names(place: Place, schedule: ScheduleSpec) -> None:
    """Refuses names of schedules, passes, compute orders and collectives that nothing has."""
    here, faults = place.at("schedule"), Faults()
    base = schedule.name if schedule.name in STRATEGIES else ScheduleSpec.name
    skeleton = schedule.skeleton
    if skeleton is not None and skeleton.endswith(ENDING):
        skeleton = None  # a file
    for check in (
        lambda: strategy(schedule.name),
        lambda: strategy(base, schedule.without),
        lambda: combined(STRATEGIES[base], skeleton, None),
        lambda: combined(STRATEGIES[base], None, schedule.passes),
        lambda: require_collective(schedule.collective),
    ):
        with faults:
            _at_key(check, here)
    faults.raise_all()


def _at_key(check: Callable[[], object], here: Place) -> None:
    """Makes a check; the key that its error names gets its line."""
    try:
        check()
    except SpecError as error:
        key = error.place.split()[-1]
        raise SpecError(error.what, place=str(here.at(key)), fix=error.fix) from None


_NAMES = (Check(("schedule",), _check_names),)


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
    _require_averages(job, file)
    early = job.schedule.averages_by_turns and job.schedule.averages == "early-start"
    if job.train.outer_learning_rate is not None and not early:
        raise SpecError(
            "an outer step takes means of copies of weights, which this job does not make",
            place=f"{file} [train] outer_learning_rate",
            fix='set [schedule] average_every and averages = "early-start", or leave it out',
        )
    if job.schedule.average_wire != "fp32" and job.train.outer_learning_rate is None:
        raise SpecError(
            f"weights are not averaged in {job.schedule.average_wire}, but what replicas learnt "
            "since an outer step is",
            place=f"{file} [schedule] average_wire",
            fix="set [train] outer_learning_rate, or leave it out (1, with outer_momentum 0, "
            "makes a mean)",
        )
    if job.averages_form.has_scales and job.collective != DIRECT:
        raise SpecError(
            f"integers that have scales of their own are not added up on their way "
            f"({job.collective})",
            place=f"{file} [schedule] average_wire",
            fix=f'use collective = "{DIRECT}", or average_wire = "bf16"',
        )
    if job.schedule.average_every is not None:
        chosen = _averaging(job, chosen, file)
    if job.train.overflow == "unit":
        _require_units_alone(job, file)
    if job.schedule.mirror:
        _require_mirror(job, file)
    if job.schedule.recover_heads is not None:
        chosen = replace(chosen, recovers_heads=job.schedule.recover_heads)
    return chosen


def _require_averages(job: JobSpec, file: str) -> None:
    """Refuses what is said of averages that a job does not make."""
    schedule = job.schedule
    if schedule.leaves_period_open:
        raise SpecError(
            "the planner says how often replicas average, and was not asked here",
            place=f"{file} [schedule] average_exposed",
            fix="set average_every in its place: `ratrain plan` and `simulate` say which",
        )
    if schedule.average_every is None and schedule.averages != "local-sgd":
        raise SpecError(
            f"replicas average nothing, whatever the order ({schedule.averages})",
            place=f"{file} [schedule] averages",
            fix="set average_every, the steps of a period, or leave averages out",
        )
    if schedule.average_every is None and schedule.average_between != "replicas":
        raise SpecError(
            f"{schedule.average_between} average nothing",
            place=f"{file} [schedule] average_between",
            fix="set average_every, the steps of a period, or leave average_between out",
        )
    if schedule.average_turns and not schedule.averages_by_turns:
        raise SpecError(
            "all units are averaged at once, so none has a step of its own",
            place=f"{file} [schedule] average_turns",
            fix='leave it out, or set averages = "early-start" or "dreamddp"',
        )


def _require_mirror(job: JobSpec, file: str) -> None:
    """Refuses mirrors of states that a buddy cannot make anew from gradients alone."""
    schedule = job.schedule
    reasons = {
        "replicas that average their weights have no gradient in common": schedule.average_every,
        "residuals of error feedback are on one rank alone": schedule.error_feedback,
        "units that skip updates by themselves do not tell their buddies": job.units_decide,
        "devices compute in different dtypes, and round otherwise": job.unlike,
        f"the backend {schedule.backend} has none": not job.backend.trains,
    }
    for reason, holds in reasons.items():
        if holds:
            raise SpecError(
                f"optimizer states cannot be mirrored here: {reason}",
                place=f"{file} [schedule] mirror",
                fix="leave it out: after a loss the run goes on from the latest checkpoint",
            )


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
    if job.sites:
        return _averaging_sites(job, strategy, file)
    if job.schedule.sharding or job.schedule.gradient_accumulation == "sharded":
        raise SpecError(
            "replicas that train independently hold all of their states",
            place=place,
            fix="leave sharding and sharded gradient_accumulation out",
        )
    every = job.checkpoint.every
    if job.schedule.averages_by_turns:
        return replace(strategy, sharding=0)  # each replica's states are saved
    if every % (job.schedule.average_every or 1):
        raise SpecError(
            f"replicas are identical every {job.schedule.average_every} steps, but checkpoints "
            f"are saved "
            f"every {every}",
            place=f"{file} [checkpoint] every",
            fix=f"use a multiple of {job.schedule.average_every}",
        )
    return replace(strategy, sharding=0)


def _averaging_sites(job: JobSpec, strategy: Strategy, file: str) -> Strategy:
    """The strategy of replicas at sites, which shard states inside their site as far as it asks;
    where each site has one of them there is nothing to divide."""
    if not job.schedule.averages_by_turns:
        raise SpecError(
            "between sites units are averaged by turns, each owner's weights alone, not with all "
            "states at once (local-sgd)",
            place=f"{file} [schedule] averages",
            fix='set averages = "early-start" or "dreamddp", or leave average_between out',
        )
    if job.schedule.collective not in (None, DIRECT):
        raise SpecError(
            f"inside a site that averages with others gradients are not reduced by "
            f"{job.schedule.collective} yet",
            place=f"{file} [schedule] collective",
            fix=f'use "{DIRECT}", or leave it out',
        )
    alone = job.layout is not None and job.peers(job.layout.data) == 1
    return replace(strategy, sharding=0) if alone else strategy


def require_tieable(job: JobSpec, pipeline: int | None = None) -> None:
    """Refuses sharded gradients where both copies of a tied matrix need whole ones."""
    if trains_tied(job, pipeline) and job.schedule.gradient_accumulation == "sharded":
        raise SpecError(
            f"{job.model.spec.name} ties its embedding and its head: adding their gradients takes "
            "whole gradients, which sharded accumulation does not keep",
            place=f"{job.path or 'job'} [schedule] gradient_accumulation",
            fix='set gradient_accumulation = "local"',
        )


def require_whole(job: JobSpec, *, tensor: int, shards: bool, place: str) -> None:
    """Refuses to divide matrices that the optimizer must see whole: among a tensor group, or where
    it `shards` states."""
    if not job.train.rule.whole or (tensor == 1 and not shards):
        return
    by = f"a tensor group of {tensor}" if tensor > 1 else "sharded states"
    fix = "set tensor = 1" if tensor > 1 else "set [schedule] sharding = 0"
    raise SpecError(
        f"the optimizer {job.train.optimizer} needs whole matrices, which {by} would divide",
        place=place,
        fix=f'{fix}, or use [train] optimizer = "adamw"',
    )


def no_shards(job: JobSpec, level: int) -> SpecError:
    """The error of a job that wants gradients sharded where they are not."""
    return SpecError(
        f"{job.schedule.name} does not shard gradients (sharding level {level})",
        place=f"{job.path or 'job'} [schedule] gradient_accumulation",
        fix="set sharding to 2 or 3, or leave gradient_accumulation out",
    )
