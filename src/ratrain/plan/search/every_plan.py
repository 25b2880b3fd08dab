"""What `ratrain plan` finds: plans of alike replicas and, on few unequal devices, of any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ratrain.describe.job import JobSpec
from ratrain.describe.units import format_time
from ratrain.errors import Infeasible
from ratrain.plan.file.form import PlanFile
from ratrain.plan.search.effort import STARTS
from ratrain.plan.search.layouts import Progress, Search
from ratrain.plan.search.misfit import planned
from ratrain.plan.search.tried import Timed, Tried
from ratrain.plan.search.unequal import UnequalSearch, searchable, unequal_search
from ratrain.program.skeletons import SKELETONS

NO_ALIKE = "no plan with identical replicas fits"


@dataclass(frozen=True)
class EveryPlan:
    """Both searches of a job. `alike` is None where no plan of alike replicas fits, `unequal` where
    none of others is searched for."""

    job: JobSpec
    alike: Search | None
    unequal: UnequalSearch | None

    @property
    def best(self) -> Timed | None:
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
    def faster(self) -> Timed | None:
        """A plan that is faster than the best, and that `ratrain train` cannot run yet."""
        others = self.unequal.others if self.unequal is not None else ()
        return others[0] if others and others[0] is not self.best else None

    def file(self, *, fastest: bool) -> PlanFile:
        """The plan file of the best plan, or of the fastest, whether it trains or not."""
        return ((self.faster if fastest else None) or self.chosen).file()


def every_plan(job: JobSpec, progress: Progress | None = None, *, quick: bool = False) -> EveryPlan:
    """The `EveryPlan` of a job without a layout. Raises `Infeasible` where nothing fits. `quick`:
    less is tried of replicas that differ."""
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
    if not searchable(job):
        return EveryPlan(job, alike, None)
    tried = alike.tried if alike is not None else ()
    best_s = min((plan.step_s for plan in tried), default=inf)
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


def alike_words(best: Timed, alike: Search) -> str:
    """How much longer identical replicas take."""
    more = 100 * (alike.best.step_s / best.step_s - 1)
    slower = f"{format_time(alike.best.step_s)}, {more:.1f} % more"
    return f"the fastest plan with identical replicas takes {slower}"
