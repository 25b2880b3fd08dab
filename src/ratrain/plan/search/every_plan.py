"""What `ratrain plan` finds: plans of alike replicas and, on few unequal devices, of any; what a
plan is judged by: the plans that the planner finds for its job; and the case of a job, which is
that of the plan that is found where it has no layout.

A layout's stages may join micro-batches: then the case is one of a plan, too. All else is chosen as
for stages that compute one by one. Where memory does not suffice for what stages join, these
recover their activations, and then all stages do, if the schedule has recovery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from ratrain.describe.job import JobSpec
from ratrain.describe.units import format_time
from ratrain.errors import Infeasible, SpecError
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.file.form import PlanFile, file_of_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.jobs import SPLIT_ORDERS, strategy_of, takes_other_orders
from ratrain.plan.layout.plan import Plan
from ratrain.plan.price.trial import only_over_budget
from ratrain.plan.search.layouts import Progress, Search, search_layouts
from ratrain.plan.search.limits import ANY_REPLICAS, STARTS
from ratrain.plan.search.misfit import planned
from ratrain.plan.search.of_sites import sites_differ, sites_search
from ratrain.plan.search.periods import Period, chosen_words, settled
from ratrain.plan.search.tried import Tried
from ratrain.plan.search.unequal import UnequalSearch, searchable, unequal_search
from ratrain.program.skeletons import SKELETONS, TOGETHER, layer_major_name

NO_ALIKE = "no plan with identical replicas fits"


@dataclass(frozen=True)
class EveryPlan:
    """Both searches of a job. `alike` is None where no plan of alike replicas fits, `unequal` where
    none of others is searched for."""

    job: JobSpec
    alike: Search | None
    unequal: UnequalSearch[Tried] | None
    periods: tuple[Period, ...] = ()
    """Those that were compared, where the job leaves how often replicas average to the planner."""

    @property
    def best(self) -> Tried | None:
        """The fastest plan that can be trained, or that there is where none can, where its replicas
        differ; None where they are alike."""
        if self.unequal is None:
            return None
        if self.unequal.trainable:
            return self.unequal.trainable[0]
        none_trains = self.alike is None or not self.job.backend.trains
        return self.unequal.others[0] if none_trains and self.unequal.others else None

    @property
    def chosen(self) -> Tried:
        """The plan that `ratrain plan` writes, and that every command runs of a job that has no
        layout."""
        if self.best is not None:
            return self.best
        assert self.alike is not None, "one of the searches has found a plan"
        return self.alike.best

    @property
    def fastest_s(self) -> float:
        """The fastest step of a plan that can be trained; infinite where there is none."""
        alike = self.alike.tried[:1] if self.alike is not None else ()
        unequal = self.unequal.trainable[:1] if self.unequal is not None else ()
        return min([inf, *(plan.step_s for plan in (*alike, *unequal))])

    @property
    def usable(self) -> tuple[Tried, ...]:
        """All plans that can be trained, or that there are where none can: the fastest first."""
        unequal, alike = self.unequal, self.alike.tried if self.alike is not None else ()
        trainable = unequal.trainable if unequal is not None else ()
        others = unequal.others if unequal is not None and self.chosen in unequal.others else ()
        return (*others, *trainable, *alike)

    @property
    def faster(self) -> Tried | None:
        """A plan that is faster than the best, and that `ratrain train` cannot run yet."""
        others = self.unequal.others if self.unequal is not None else ()
        return others[0] if others and others[0] is not self.best else None

    def file(self, *, fastest: bool) -> PlanFile:
        """The plan file of the best plan, or of the fastest, whether it trains or not."""
        return ((self.faster if fastest else None) or self.chosen).file()


def every_plan(job: JobSpec, progress: Progress | None = None, *, quick: bool = False) -> EveryPlan:
    """The `EveryPlan` of a job without a layout. Raises `Infeasible` where nothing fits. `quick`:
    less is tried of replicas that differ."""
    if job.schedule.leaves_period_open:
        plans, compared = settled(
            job, lambda job: every_plan(job, progress, quick=quick), lambda p: p.chosen.subject()
        )
        return replace(plans, periods=compared)
    alike, infeasible = None, None
    try:
        alike = planned(job, progress)
    except Infeasible as error:
        infeasible = error
    plans = with_unequal(job, alike, progress, quick=quick)
    if infeasible and not (plans.unequal and (plans.unequal.trainable or plans.unequal.others)):
        raise infeasible
    return plans


def with_unequal(
    job: JobSpec, alike: Search | None, progress: Progress | None, *, quick: bool = False
) -> EveryPlan:
    """These plans of alike replicas, and those of others that are faster."""
    tried = alike.tried if alike is not None else ()
    best_s = min((plan.step_s for plan in tried), default=inf)
    if job.sites and sites_differ(job):
        return EveryPlan(job, alike, sites_search(job, best_s, progress))
    if not searchable(job):
        return EveryPlan(job, alike, None)
    starts = [plan.plan for plan in tried[:STARTS]]
    whole_s = _fastest_whole_s(tried)
    unequal = unequal_search(job, starts, best_s, progress, whole_s=whole_s, quick=quick)
    return EveryPlan(job, alike, unequal)


def _fastest_whole_s(tried: Sequence[Tried]) -> float:
    """The step of the fastest of these with backward whole, of the fastest of all where each is
    split; they come the fastest first. Infinite where there are none."""
    whole = (t for t in tried if not SKELETONS[t.plan.strategy.skeleton].split_backward)
    return next((plan.step_s for plan in (*whole, *tried)), inf)


def beside_words(plans: EveryPlan) -> list[str]:
    """What identical replicas would take, where the best plan has others."""
    best, alike = plans.best, plans.alike
    if best is None:
        return []
    if alike is None:
        return [NO_ALIKE]
    return [f'{alike_words(best, alike)} ([schedule] replicas = "identical")']


def alike_words(best: Tried, alike: Search) -> str:
    """How much longer identical replicas take."""
    more = 100 * (alike.best.step_s / best.step_s - 1)
    slower = f"{format_time(alike.best.step_s)}, {more:.1f} % more"
    return f"the fastest plan with identical replicas takes {slower}"


def plan_of_job(job: JobSpec, progress: Progress | None = None) -> tuple[Plan, EveryPlan]:
    """The plan that `ratrain plan` writes, and what it found besides. Raises `Infeasible` where
    nothing fits."""
    plans = every_plan(job, progress)
    subject = plans.chosen.subject()
    return subject, replace(plans, alike=plans.alike or searched(subject))


def plans_beside(subject: Plan, progress: Progress | None = None) -> EveryPlan:
    """What the planner finds for the job of a plan."""
    alike, job = searched(subject, progress), _asked(subject)
    if job.cluster.devices > ANY_REPLICAS:
        return EveryPlan(job, alike, None)
    return with_unequal(job, alike, progress)


def searched(subject: Plan, progress: Progress | None = None) -> Search | None:
    """The planner's own search of the job for identical replicas; None where it knows no layout
    that takes all devices."""
    try:
        return search_layouts(_asked(subject), progress)
    except (SpecError, Infeasible):
        if subject.is_layout:
            raise
        return None


def _asked(subject: Plan) -> JobSpec:
    """The plan's job as the planner is asked: without a layout, nor an order that a plan chose."""
    return with_order_open(replace(subject.job, layout=None))


def case_of_job(job: JobSpec, progress: Progress | None = None) -> Case:
    """The case of a job, planned where it has no layout; a SpecError where no program says it."""
    layout = job.layout
    if job.schedule.leaves_period_open:
        case, found = settled(job, lambda job: case_of_job(job, progress), lambda case: case.plan)
        chosen = chosen_words(found, case.job.schedule)
        return replace(case, beside=(*case.beside, *([chosen] if chosen else [])))
    if layout is None:
        plans = every_plan(job, progress)
        return Case(plans.chosen.subject(), beside=tuple(beside_words(plans)))
    if max(layout.joined, default=1) == 1:
        return case_of(_one_by_one(job))
    cases = map(Case, _plans(job))
    first = next(cases)
    if first.proved.verdict.sound or not only_over_budget(first.proved.verdict):
        return first
    return next((case for case in cases if case.proved.verdict.sound), first)


def _one_by_one(job: JobSpec) -> JobSpec:
    """The job without what its stages join."""
    assert job.layout is not None
    return replace(job, layout=replace(job.layout, joined=()))


def _plans(job: JobSpec) -> Iterator[Plan]:
    """The job's plan, and those that recover more."""
    assert job.layout is not None
    joined, plan = job.layout.joined, case_of(_one_by_one(job)).plan
    usual, mode = plan.alike.recovery, plan.strategy.recovery
    on_joined = tuple(
        mode if several > 1 else stage for several, stage in zip(joined, usual, strict=True)
    )
    for recovery in dict.fromkeys((usual, on_joined, (mode,) * len(usual))):
        yield _joining(job, plan.recovering(recovery), joined)


def _joining(job: JobSpec, plan: Plan, joined: tuple[int, ...]) -> Plan:
    """The plan whose stages compute so many micro-batches at once."""
    written = file_of_plan(plan)
    replicas = tuple(
        replace(
            replica,
            stages=tuple(
                replace(stage, micro_batch=stage.micro_batch * several)
                for stage, several in zip(replica.stages, joined, strict=True)
            ),
        )
        for replica in written.replicas
    )
    file = str(job.path or "job")
    try:
        made = plan_of_file(replace(written, replicas=replicas), file)
    except SpecError as error:
        raise SpecError(error.what, place=f"{file} [layout] joined", fix=error.fix) from None
    given = {"train": job.train, "data": job.data, "checkpoint": job.checkpoint}
    return replace(made, job=replace(made.job, path=job.path, **given))


def with_order_open(job: JobSpec) -> JobSpec:
    """The job without the order that the planner may have chosen for it, and with what it set for
    that order: so that whatever it is compared with may take any. A plan file does not say who
    chose."""
    asked = job.schedule.skeleton
    if asked not in (*SPLIT_ORDERS, *map(layer_major_name, TOGETHER)):
        return job
    recovery = "auto" if job.schedule.recovery == "keep-all" else job.schedule.recovery
    opened = replace(job, schedule=replace(job.schedule, skeleton=None, recovery=recovery))
    return opened if takes_other_orders(opened, strategy_of(opened)) else job
