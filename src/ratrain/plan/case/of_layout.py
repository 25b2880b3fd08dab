"""A job made ready to simulate: its setup, its program, its costs, and what memory decided.

Where the job leaves recovery and accumulation to RATrain, these are tried, and the fastest of
those that are proved to fit is taken:

    keep all activations          local gradients, or sharded
    keep all but scores           local, or sharded (where attention stores its scores)
    keep the last stage's alone   local, or sharded
    recover on every stage        local, or sharded
    keep what each stage has memory for, by closed formula

Those alone are proved and simulated that a lower bound (`least_step_s`) does not rule out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from ratrain.cost.algorithms import ALGORITHMS, AUTO
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.case.case import Case, named_in
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.jobs import no_shards, require_tieable, require_whole, strategy_of
from ratrain.plan.layout.placement import Placement, place
from ratrain.plan.layout.plan import LAYER_MAJOR, MODES, SPLIT, Plan, group_of_plan, plan_of_layout
from ratrain.plan.layout.sizes import stores_scores, trains_tied
from ratrain.plan.layout.tiers import leaner_jobs, require_bucketable, require_tier
from ratrain.plan.price.fitted import fitted
from ratrain.plan.price.places import costs_of
from ratrain.plan.price.trial import least_step_s, only_over_budget, step_s_of
from ratrain.program.replicas import Recovery
from ratrain.program.skeletons import SKELETONS, Place
from ratrain.program.strategies import Strategy
from ratrain.simulate.long import simulate_proved


def choose(plan: Plan) -> Plan:
    """The fastest of the possible choices whose whole program is proved to fit; the leanest, where
    none is. Recovery only adds work, so where all activations can be kept nothing else is tried.
    `plan`: of a layout, with nothing chosen yet."""
    tried = list(_choices(plan))
    if len(tried) == 1:
        return tried[0]
    kept = [choice for choice in tried if not _recovers(choice)]
    recovering = [choice for choice in tried if _recovers(choice)]
    return _fastest(plan, kept) or _fastest(plan, recovering) or tried[-1]


def choose_order(plan: Plan) -> Plan:
    """The compute order whose step is the shortest of those that are proved to fit, with what is
    chosen in it. One that needs more memory must gain by it."""
    usual = choose(plan)
    best, best_s = usual, inf
    orders = [
        (order.worth, order.ordered(usual.job, name))
        for order in (LAYER_MAJOR, SPLIT)
        for name in order.names(usual)
    ]
    if orders:
        best_s = step_s_of(usual) or inf
    for worth, ordered in orders:
        chosen = choose(plan.in_order_of(ordered))
        step_s = step_s_of(chosen)
        if step_s is not None and step_s <= best_s * (1 - worth):
            best, best_s = chosen, step_s
    return best


def _recovers(plan: Plan) -> bool:
    return any(mode is not Recovery.NONE for mode in plan.alike.recovery)


def _fastest(plan: Plan, among: Sequence[Plan]) -> Plan | None:
    """The fastest that fits; None where none does. None is simulated whose lower bound says that it
    is slower, or that recovers more than one that fits and is else like it."""
    costs = costs_of(plan, plan.setup)
    order = sorted(
        (
            least_step_s(choice.strategy, plan.setup, choice.choices, costs),
            sum(mode is not Recovery.NONE for mode in choice.alike.recovery),
            number,
        )
        for number, choice in enumerate(among)
    )
    best, fitting = (inf, -1), list[Plan]()
    for bound_s, _, number in order:
        choice = among[number]
        if bound_s > best[0]:
            break
        if any(
            other.mode == choice.mode
            and _recovers_less(other.alike.recovery, choice.alike.recovery)
            for other in fitting
        ):
            continue
        step_s = step_s_of(choice)
        if step_s is not None:
            fitting.append(choice)
            best = min(best, (step_s, number))
    return among[best[1]] if fitting else None


def _recovers_less(modes: Sequence[Recovery], others: Sequence[Recovery]) -> bool:
    """Whether stages recover as others do, but for some that keep their activations."""
    alike = all(mode in (Recovery.NONE, other) for mode, other in zip(modes, others, strict=True))
    return alike and modes != others


def _choices(plan: Plan) -> Iterator[Plan]:
    """What may become of activations and gradients, the leanest last."""
    job, chosen, data = plan.job, plan.strategy, plan.layout.data
    reduces = job.peers(data) > 1 and chosen.sharding >= 2
    if job.backward_sends and data > 1:
        sharded = [True]
    elif job.schedule.gradient_accumulation != "auto":
        sharded = [job.schedule.gradient_accumulation == "sharded"]
    else:
        sharded = [False] if not reduces or trains_tied(job) else [False, True]
    modes = [StateMode(chosen.sharding, is_sharded and reduces) for is_sharded in sharded]
    for recovery in _recoveries(plan):
        for mode in modes:
            yield replace(plan.recovering(recovery), mode=mode)
    may_differ = chosen.recovery is not Recovery.NONE and not chosen.recovers_all
    if job.schedule.recovery == "auto" and may_differ:
        for mode in modes:
            fitting = replace(plan, mode=mode)
            codes = fitted(group_of_plan(fitting))[0][0]
            yield fitting.recovering(tuple(MODES[int(code)] for code in codes))


def _recoveries(plan: Plan) -> Iterator[tuple[Recovery, ...]]:
    """What stages do: all the same, but perhaps the last."""
    chosen, stages, asked = plan.strategy, plan.layout.stages, plan.job.schedule.recovery
    everywhere = (chosen.recovery,) * stages
    ahead = chosen.recovery is Recovery.FORWARD
    named = {
        "keep-all": (Recovery.NONE,) * stages,
        "selective": (Recovery.SELECTIVE,) * stages,
        "spill": (Recovery.SPILL,) * stages,
        "exempt-last": (*everywhere[1:], Recovery.NONE) if ahead else everywhere,
        "everywhere": everywhere,
    }
    if asked != "auto":
        yield named[asked]
        return
    if chosen.recovery is not Recovery.NONE and not chosen.recovers_all:
        yield named["keep-all"]
        if stores_scores(plan.job):
            yield named["selective"]
        if plan.job.activation_tier:
            yield named["spill"]
        if ahead:
            yield named["exempt-last"]
    yield everywhere


def case_of(job: JobSpec) -> Case:
    """The case of a job that has a layout. What is chosen with it is the best for any collective
    that "auto" may come to."""
    assert job.layout is not None, "a job without a layout is planned first: case_of_job"
    case = _case_in_memory(job)
    if job.collective != AUTO or job.layout.data == 1:
        return case
    cases = [case, *(_as_best_with(job, name) for name in ALGORITHMS)]
    sound = [each for each in cases if each.proved.verdict.sound]
    return min(sound, key=_step_s) if sound else case


def _step_s(case: Case) -> float:
    return simulate_proved(case.proved, case.costs).step_time_s


def _as_best_with(job: JobSpec, collective: str) -> Case:
    """The case of a job as it is the fastest with a collective."""
    named = replace(job, schedule=replace(job.schedule, collective=collective))
    case = _case_in_memory(named)
    schedule = replace(case.job.schedule, collective=job.schedule.collective)
    return Case(replace(case.plan, job=replace(case.job, schedule=schedule)))


def _case_in_memory(job: JobSpec) -> Case:
    """The case of a job with a layout. Where memory does not suffice, gradients are sent in
    buckets, or optimizer states wait in another tier, if that is enough."""
    assert job.layout is not None
    case = case_as_asked(job)
    verdict = case.proved.verdict
    if verdict.sound or not only_over_budget(verdict):
        return case
    others = leaner_jobs(job, case.strategy, replicas=job.layout.data > 1)
    tried = (case_as_asked(leaner) for leaner in others)
    return next((other for other in tried if other.proved.verdict.sound), case)


def require_one_by_one(job: JobSpec) -> None:
    """Refuses stages that join micro-batches: no case of a layout says them (`case_of_job`)."""
    if job.layout is not None and job.layout.joined:
        raise SpecError(
            "layouts whose stages join micro-batches cannot be compared here",
            place=f"{job.path or 'job'} [layout] joined",
            fix="leave joined out; program, verify, simulate, train and report take it",
        )


def case_as_asked(job: JobSpec) -> Case:
    """The case of a job with a layout: its gradients leave whole, unless it asks for buckets."""
    layout = job.layout
    assert layout is not None
    file = str(job.path or "job")
    require_one_by_one(job)
    chosen = strategy_of(job)
    if job.schedule.name == "tensor-parallel-heavy" and layout.tensor == 1:
        raise SpecError(
            "tensor = 1 is no tensor parallelism, which tensor-parallel-heavy is made for",
            place=f"{file} [layout] tensor",
            fix="set tensor to the devices of a host, and divide pipeline by it",
        )
    if job.schedule.gradient_accumulation == "sharded" and chosen.sharding < 2:
        raise no_shards(job, chosen.sharding)
    require_tieable(job)
    shards = layout.data > 1 and chosen.sharding > 0
    where = f"{file} [layout] tensor" if layout.tensor > 1 else f"{file} [schedule] sharding"
    require_whole(job, tensor=layout.tensor, shards=shards, place=where)
    require_bucketable(job, chosen)
    require_tier(job)
    if layout.virtual > 1 and not SKELETONS[chosen.skeleton].chunks:
        raise SpecError(
            f"{chosen.skeleton} places one stage on a rank, not {layout.virtual}",
            place=f"{file} [layout] virtual",
            fix='leave it out, or set [schedule] skeleton = "interleaved"',
        )
    _require_orderable(job, layout, chosen)
    placement = place(job, layout)
    _require_one_dtype(job, placement)
    plan = plan_of_layout(job, placement, chosen, StateMode(chosen.sharding, False))
    with named_in(plan):
        return Case(choose_order(plan))


def _require_one_dtype(job: JobSpec, placement: Placement) -> None:
    """Refuses a tensor group whose devices compute in different dtypes."""
    layout = placement.layout
    if layout.tensor == 1 or not job.unlike:
        return
    for first in range(0, layout.devices, layout.tensor):
        kinds = {device.kind for device in placement.devices[first : first + layout.tensor]}
        if len({job.dtype_of(kind) for kind in kinds}) > 1:
            names = " and ".join(sorted(kind.name for kind in kinds))
            raise SpecError(
                f"a tensor group has devices of the kinds {names}, which compute in different "
                "dtypes",
                place=f"{job.path or 'job'} [layout] tensor",
                fix="let a tensor group stand on devices of one kind",
            )


def _require_orderable(job: JobSpec, layout: LayoutSpec, chosen: Strategy) -> None:
    """Refuses a number of micro-batches for which the strategy's skeleton has no order."""
    place = Place(0, layout.pipeline, layout.virtual, job.micro_batches)
    fixed = SKELETONS[chosen.skeleton].fixed
    try:
        next(SKELETONS[chosen.skeleton].order(place), None)
    except ProgramError as error:
        if fixed is not None and (fixed.ranks, fixed.chunks) != (place.ranks, place.chunks):
            key = "pipeline" if fixed.ranks != place.ranks else "virtual"
            raise SpecError(
                error.what,
                place=f"{job.path or 'job'} [layout] {key}",
                fix=f"use pipeline = {fixed.ranks} and virtual = {fixed.chunks}",
            ) from None
        raise SpecError(
            error.what,
            place=f"{job.path or 'job'} [batch] sequences",
            fix=f"{error.fix} per replica: {layout.data} x {job.batch.micro_batch} sequences each",
        ) from None
