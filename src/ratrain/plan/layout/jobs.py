"""A job file read, with the names that this room and the program room know checked too; its
strategy, and the compute orders that are tried where it names none.

Where a rank holds the whole model, a step in 1F1B begins with gathers that one micro-batch's
forward can hide, and ends with reductions that one micro-batch's backward can hide. Layer-major
orders hide them behind several micro-batches, for the memory of as many. In a pipeline they gain
nothing: the last micro-batch's gradient comes when it comes. There orders that split backward are
tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ratrain.cost.algorithms import DIRECT
from ratrain.describe.job import JobSpec, ScheduleSpec
from ratrain.describe.job_checks import Check
from ratrain.describe.job_file import job_of_file
from ratrain.errors import SpecError
from ratrain.plan.layout.links import require_collective
from ratrain.plan.layout.sizes import trains_tied
from ratrain.program.pipelining.fixed import ENDING, fixed_order
from ratrain.program.skeletons import TOGETHER, layer_major_name
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


Refused = Iterable[tuple[str, str, str]]
"""Each a key of a job's file, what is wrong with it, and the smallest fix."""


def fault(job: JobSpec, key: str, what: str, fix: str) -> SpecError:
    """What is wrong with a key of a job's file, and the smallest fix."""
    return SpecError(what, place=f"{job.path or 'job'} {key}", fix=fix)


def refuse(job: JobSpec, found: Refused) -> None:
    """Raises the first of what is wrong with a job."""
    for key, what, fix in found:
        raise fault(job, key, what, fix)


def strategy_of(job: JobSpec) -> Strategy:
    """The strategy that a job names, with the options that the job sets. Replicas that train alone
    between averages hold every state whole; at sites they shard states inside their site as far as
    it asks, but for sites that have one of them each, where there is nothing to divide."""
    file, asked = str(job.path or "job"), job.schedule
    chosen = strategy(asked.name, asked.without, file=file)
    skeleton = asked.skeleton
    if skeleton is not None and skeleton.endswith(ENDING):
        folder = job.path.parent if job.path else Path()
        skeleton = fixed_order(folder / skeleton)
    chosen = combined(chosen, skeleton, asked.passes, file=file)
    require_collective(asked.collective, file)
    for found in (_wrong_averages, _wrong_between_averages, _wrong_units_alone, _wrong_mirror):
        refuse(job, found(job))
    if asked.sharding is not None:
        chosen = replace(chosen, sharding=asked.sharding)
    alone = not job.sites or (job.layout is not None and job.peers(job.layout.data) == 1)
    if asked.average_every is not None and alone:
        chosen = replace(chosen, sharding=0)
    if asked.recover_heads is not None:
        chosen = replace(chosen, recovers_heads=asked.recover_heads)
    return chosen


def _wrong_averages(job: JobSpec) -> Refused:
    """What is said of averages that a job does not make."""
    schedule, ask = job.schedule, "set average_every, the steps of a period"
    if schedule.leaves_period_open:
        what = "the planner says how often replicas average, and was not asked here"
        fix = "set average_every in its place: `ratrain plan` and `simulate` say which"
        yield "[schedule] average_exposed", what, fix
    if schedule.average_every is None and schedule.averages != "local-sgd":
        what = f"replicas average nothing, whatever the order ({schedule.averages})"
        yield "[schedule] averages", what, f"{ask}, or leave averages out"
    if schedule.average_every is None and schedule.average_between != "replicas":
        what = f"{schedule.average_between} average nothing"
        yield "[schedule] average_between", what, f"{ask}, or leave average_between out"
    if schedule.average_turns and not schedule.averages_by_turns:
        what = "all units are averaged at once, so none has a step of its own"
        fix = 'leave it out, or set averages = "early-start" or "dreamddp"'
        yield "[schedule] average_turns", what, fix
    early, outer = schedule.averages == "early-start", job.train.outer_learning_rate
    if outer is not None and not (early and schedule.averages_by_turns):
        what = "an outer step takes means of copies of weights, which this job does not make"
        fix = 'set [schedule] average_every and averages = "early-start", or leave it out'
        yield "[train] outer_learning_rate", what, fix
    if schedule.average_wire != "fp32" and outer is None:
        what = f"weights are not averaged in {schedule.average_wire}, but what replicas learnt "
        fix = "set [train] outer_learning_rate, or leave it out (1, with outer_momentum 0, "
        yield "[schedule] average_wire", f"{what}since an outer step is", f"{fix}makes a mean)"
    if job.averages_form.has_scales and job.collective != DIRECT:
        what = "integers that have scales of their own are not added up on their way "
        fix = f'use collective = "{DIRECT}", or average_wire = "bf16"'
        yield "[schedule] average_wire", f"{what}({job.collective})", fix


def _wrong_between_averages(job: JobSpec) -> Refused:
    """What replicas cannot do that train alone between averages."""
    schedule, saves, steps = job.schedule, job.checkpoint.every, job.schedule.average_every
    if steps is None:
        return
    if job.train.clip_norm is not None or job.awaits_overflow:
        what = "replicas that train independently have no global gradient norm to clip by, or to "
        fix = 'leave [train] clip_norm out, and in fp16 set overflow = "unit"'
        yield "[schedule] average_every", f"{what}check fp16 with", fix
    if job.sites and not schedule.averages_by_turns:
        what = "between sites units are averaged by turns, each owner's weights alone, not with "
        fix = 'set averages = "early-start" or "dreamddp", or leave average_between out'
        yield "[schedule] averages", f"{what}all states at once (local-sgd)", fix
    if job.sites and schedule.collective not in (None, DIRECT):
        what = "inside a site that averages with others gradients are not reduced by "
        what += f"{schedule.collective} yet"
        yield "[schedule] collective", what, f'use "{DIRECT}", or leave it out'
    if not job.sites and (schedule.sharding or schedule.gradient_accumulation == "sharded"):
        what = "replicas that train independently hold all of their states"
        fix = "leave sharding and sharded gradient_accumulation out"
        yield "[schedule] average_every", what, fix
    if not schedule.averages_by_turns and saves % steps:  # else each replica's states are saved
        what = f"replicas are identical every {steps} steps, but checkpoints are saved "
        yield "[checkpoint] every", f"{what}every {saves}", f"use a multiple of {steps}"


def _wrong_mirror(job: JobSpec) -> Refused:
    """Mirrors of states that a buddy cannot make anew from gradients alone."""
    schedule = job.schedule
    if not schedule.mirror:
        return
    reasons = {
        "replicas that average their weights have no gradient in common": schedule.average_every,
        "residuals of error feedback are on one rank alone": schedule.error_feedback,
        "units that skip updates by themselves do not tell their buddies": job.units_decide,
        "devices compute in different dtypes, and round otherwise": job.unlike,
        f"the backend {schedule.backend} has none": not job.backend.trains,
    }
    fix = "leave it out: after a loss the run goes on from the latest checkpoint"
    for reason in (words for words, holds in reasons.items() if holds):
        yield "[schedule] mirror", f"optimizer states cannot be mirrored here: {reason}", fix


def _wrong_units_alone(job: JobSpec) -> Refused:
    """Units that decide by themselves whether to update where some must decide together."""
    if job.train.overflow != "unit":
        return
    reasons = {
        "clipping waits for all gradients anyway": job.train.clip_norm is not None,
        "both copies of a tied matrix must be updated, or neither": trains_tied(job),
        "all ranks of a tensor group must update a unit, or none": (
            job.layout is not None and job.layout.tensor > 1
        ),
    }
    for reason in (words for words, holds in reasons.items() if holds):
        yield "[train] overflow", f'overflow = "unit" cannot be used here: {reason}', "leave it out"


def require_tieable(job: JobSpec, pipeline: int | None = None) -> None:
    """Refuses sharded gradients where both copies of a tied matrix need whole ones."""
    if trains_tied(job, pipeline) and job.schedule.gradient_accumulation == "sharded":
        what = f"{job.model.spec.name} ties its embedding and its head: adding their gradients "
        what += "takes whole gradients, which sharded accumulation does not keep"
        fix = 'set gradient_accumulation = "local"'
        raise fault(job, "[schedule] gradient_accumulation", what, fix)


def require_whole(job: JobSpec, *, tensor: int, shards: bool, place: str) -> None:
    """Refuses to divide matrices that the optimizer must see whole: among a tensor group, or where
    it `shards` states."""
    if not job.train.rule.whole or (tensor == 1 and not shards):
        return
    by = f"a tensor group of {tensor}" if tensor > 1 else "sharded states"
    what = f"the optimizer {job.train.optimizer} needs whole matrices, which {by} would divide"
    fix = "set tensor = 1" if tensor > 1 else "set [schedule] sharding = 0"
    raise SpecError(what, place=place, fix=f'{fix}, or use [train] optimizer = "adamw"')


def require_shards(job: JobSpec, level: int | None) -> None:
    """Refuses gradients that should be sharded at a level where they are not; None: it is open."""
    if job.schedule.gradient_accumulation == "sharded" and level is not None and level < 2:
        what = f"{job.schedule.name} does not shard gradients (sharding level {level})"
        fix = "set sharding to 2 or 3, or leave gradient_accumulation out"
        raise fault(job, "[schedule] gradient_accumulation", what, fix)


# ---- orders that are tried ------------------------------------------------------------------


MOST_OPS = 20_000
"""Ops of compute up to which layer-major orders are tried: they have no repeating middle, and the
more micro-batches a step has, the less its ends count."""
WORTH_MEMORY = 0.002
"""Part of a step that such an order must save to be taken: it holds more micro-batches."""


def layer_orders(
    job: JobSpec, chosen: Strategy, micro_batches: Sequence[int], *, whole_model: bool
) -> tuple[str, ...]:
    """The layer-major orders that replicas of so many micro-batches may be in beside the strategy's
    own; `whole_model`: whether a rank holds all of it, and others hold parts of it too."""
    ops, most = 2 * (job.model.spec.layers + 2) * sum(micro_batches), max(micro_batches)
    if not (whole_model and most > 1 and ops <= MOST_OPS and takes_other_orders(job, chosen)):
        return ()
    return tuple(layer_major_name(together) for together in TOGETHER if together < 2 * most)


def takes_other_orders(job: JobSpec, chosen: Strategy) -> bool:
    """Whether a job leaves its compute order to the planner."""
    return (
        job.schedule.skeleton is None
        and chosen.skeleton == "1f1b"
        and chosen.prefetch
        and not chosen.recovers_all  # a system as others describe it, whose order is 1F1B
        and not chosen.further
        and job.schedule.average_every is None
    )


def in_order(job: JobSpec, skeleton: str) -> JobSpec:
    """The job with a compute order that was chosen for it."""
    return replace(job, schedule=replace(job.schedule, skeleton=skeleton))


SPLIT_ORDERS = ("zb-h1",)
WORTH_SPLIT = 0.03
"""Part of a step that such an order must save in simulation to be taken: what the two halves take
beyond one backward is known to within so much."""


def in_split_order(job: JobSpec, skeleton: str) -> JobSpec:
    """The job in such an order, with all activations kept: a rank that has to recover some has no
    memory for further micro-batches, and its gaps are filled by recoveries."""
    ordered = in_order(job, skeleton)
    return replace(ordered, schedule=replace(ordered.schedule, recovery="keep-all"))
