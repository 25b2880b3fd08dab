"""Compute orders compared: every strategy of the registry on a job's layout, or every order with a
name on a plan whose stages or replicas differ, with its own replicas, recovery and passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.errors import ProgramError, RatrainError
from ratrain.plan.case.case import Case, case_of, require_one_by_one
from ratrain.plan.file.checks import require_runnable
from ratrain.plan.layout.jobs import in_order, strategy_of
from ratrain.plan.layout.plan import Plan
from ratrain.plan.search.every_plan import every_plan
from ratrain.program.repeating import compute_ops
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import STRATEGIES, strategy
from ratrain.readers.place import Place

Progress = Callable[[int, int], None]
MOST_OPS = 40_000
"""Ops of compute up to which an order that does not repeat is written out to be compared."""
VIRTUAL = 2
"""Stages per rank of an interleaved order where the job's layout has one."""


@dataclass(frozen=True)
class Predicted:
    """What was proved and simulated of a strategy: the whole program, in full size."""

    step_s: float
    bound_bytes: int
    bubble: float  # share of rank time spent waiting for other stages
    fits: bool
    stages_per_rank: int


@dataclass(frozen=True)
class ComparedSchedule:
    """A strategy on the job. Without `predicted`, `problem` says why it cannot run it."""

    name: str
    order: str  # the compute order (skeleton)
    doc: str
    predicted: Predicted | None
    problem: str


@dataclass(frozen=True)
class LaidOut:
    """What orders are compared on: a job's layout, whose schedules they are, or a plan. `file`: of
    the plan, or of the job that it was found for."""

    job: JobSpec
    file: Path
    plan: Plan | None = None  # None: of the job's layout

    @property
    def layout(self) -> LayoutSpec:
        assert self.job.layout is not None
        return self.job.layout

    @property
    def planned(self) -> bool:
        """Whether the plan was found for a job, and is in no file."""
        return self.file.suffix != ".json"

    def place(self, table: str, key: str) -> str:
        """Where its file says something."""
        whose = key if self.plan is not None else f"[{table}] {key}"
        return f"{self.file} {whose}"

    @property
    def names(self) -> list[str]:
        """What is compared."""
        if self.plan is None:
            return list(STRATEGIES)
        return [name for name, skeleton in SKELETONS.items() if skeleton.fixed is None]

    def case(self, name: str) -> Case:
        """The case under one of these names; an error where there is none."""
        if self.plan is not None:
            self._require_short(name, compute_ops(self.plan.setup))
            return self.in_order(self.job, name)
        job, layout = as_named(self.job, name), self.layout
        order = strategy_of(job).skeleton
        self._require_short(order, 2 * (job.model.spec.layers + 2) * job.micro_batches)
        return case_of(replace(job, layout=layout_for(job, layout, order)))

    def in_order(self, job: JobSpec, order: str) -> Case:
        """The case of the plan, or of a job with a layout, in an order with a name or of a file."""
        job = in_order(job, order)
        if self.plan is None:
            return case_of(job)
        strategy = replace(self.plan.strategy, skeleton=strategy_of(job).skeleton)
        ordered = replace(self.plan, job=job, strategy=strategy)
        require_runnable(ordered, Place(str(self.file), form="json"))
        return Case(ordered)

    def _require_short(self, order: str, ops: int) -> None:
        """Refuses an order that would have to be written out and is too long for a comparison."""
        layouts = [self.layout] if self.plan is None else [r.layout for r in self.plan.replicas]
        known = SKELETONS[order]
        repeats = all(known.stride(each.pipeline, each.virtual) is not None for each in layouts)
        if not repeats and ops > MOST_OPS:
            raise ProgramError(
                f"the order {order} has no repeating part, so all of its {ops:,} compute ops would "
                f"have to be written out; a comparison allows {MOST_OPS:,}. Simulate it alone, or "
                "compare with fewer sequences"
            )


@dataclass(frozen=True)
class Comparison(LaidOut):
    """All of them: those that fit first, each group fastest first."""

    rows: tuple[ComparedSchedule, ...] = ()

    @property
    def fitting(self) -> list[ComparedSchedule]:
        return [row for row in self.rows if row.predicted is not None and row.predicted.fits]

    @property
    def fastest_s(self) -> float | None:
        """The step of the fastest that fits."""
        return next((row.predicted.step_s for row in self.fitting if row.predicted), None)


def laid_out(job: JobSpec, progress: Progress | None = None) -> LaidOut:
    """The job itself where it has a layout, else what `ratrain plan` writes for it."""
    file = job.path or Path("job")
    if job.layout is not None:
        return LaidOut(job, file)
    plan = every_plan(job, progress).chosen.subject()
    return LaidOut(plan.job, file, plan if plan.job.layout is None else None)


def compare(subject: LaidOut, progress: Progress | None = None) -> Comparison:
    """The `Comparison` of a layout or a plan."""
    if subject.plan is None:
        require_one_by_one(subject.job)
    rows: list[ComparedSchedule] = []
    for number, name in enumerate(subject.names):
        if progress is not None:
            progress(number, len(subject.names))
        rows.append(_compared(subject, name))
    if progress is not None:
        progress(len(rows), len(rows))
    ranked = tuple(sorted(rows, key=_order))
    return Comparison(subject.job, subject.file, subject.plan, ranked)


def _compared(subject: LaidOut, name: str) -> ComparedSchedule:
    """One of them."""
    order, doc = name, ""
    try:
        if subject.plan is None:
            known = strategy(name)
            order, doc = known.skeleton, known.doc
            order = strategy_of(as_named(subject.job, name)).skeleton
        else:
            doc = SKELETONS[name].doc
        case = subject.case(name)
        simulation = case.simulation
        predicted = Predicted(
            simulation.step_time_s,
            simulation.bound_bytes,
            simulation.bubble_fraction,
            simulation.feasible,
            max(replica.layout.virtual for replica in case.plan.replicas),
        )
        return ComparedSchedule(name, case.plan.strategy.skeleton, doc, predicted, "")
    except RatrainError as error:
        return ComparedSchedule(name, order, doc, None, error.what)


def _order(row: ComparedSchedule) -> tuple[int, float]:
    if row.predicted is None:
        return 2, 0.0
    return (0 if row.predicted.fits else 1), row.predicted.step_s


def as_named(job: JobSpec, name: str) -> JobSpec:
    """The job under a strategy's name, with its own budget, batch and layout; what it leaves out
    and asks for otherwise belongs to its own strategy."""
    without = job.schedule.without if name == job.schedule.name else ()
    schedule = replace(job.schedule, name=name, without=without)
    if name != job.schedule.name:  # these too ask something of the job's own strategy
        schedule = replace(
            schedule,
            sharding=None,
            gradient_accumulation="auto",
            recovery="auto",
            skeleton=None,
            passes=None,
        )
    return replace(job, schedule=schedule)


def layout_for(job: JobSpec, layout: LayoutSpec, order: str) -> LayoutSpec:
    """The layout with as many stages per rank as a compute order takes."""
    if SKELETONS[order].chunks:
        enough = job.model.spec.layers >= VIRTUAL * layout.pipeline
        if layout.virtual == 1 and layout.pipeline > 1 and enough:
            return replace(layout, virtual=VIRTUAL, layers="balanced")
        return layout
    return layout if layout.virtual == 1 else replace(layout, virtual=1, layers="balanced")
