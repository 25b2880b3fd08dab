"""Every strategy of the registry, and so every compute order, on one job and one layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.errors import ProgramError, RatrainError
from ratrain.plan.case.case import Case
from ratrain.plan.case.of_layout import case_of, require_one_by_one
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.plan import Plan
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import STRATEGIES, strategy
from ratrain.simulate.long import simulate_proved

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
class Comparison:
    """All strategies on a job's layout, or all orders with a name on a plan whose stages or
    replicas differ: those that fit first, each group fastest first. `file`: of the plan, or of the
    job."""

    job: JobSpec
    file: Path
    rows: tuple[ComparedSchedule, ...]
    plan: Plan | None = None  # None: of the job's layout

    @property
    def layout(self) -> LayoutSpec:
        assert self.job.layout is not None
        return self.job.layout

    @property
    def planned(self) -> bool:
        """Whether the plan was found for a job, and is in no file."""
        return self.file.suffix != ".json"

    @property
    def tokens(self) -> int:
        return self.job.batch.sequences * self.job.model.sequence_length

    @property
    def fastest_s(self) -> float | None:
        """The step of the fastest that fits."""
        return fastest_s(self.rows)


def compare_schedules(job: JobSpec, progress: Progress | None = None) -> Comparison:
    """The `Comparison` of a job that has a layout."""
    require_one_by_one(job)
    layout = job.layout
    assert layout is not None, "a job without a layout is planned first: compared.laid_out"
    rows = in_sequence(list(STRATEGIES), lambda name: _compared(job, layout, name), progress)
    return Comparison(job, job.path or Path("job"), rows)


def in_sequence(
    names: Sequence[str], compared: Callable[[str], ComparedSchedule], progress: Progress | None
) -> tuple[ComparedSchedule, ...]:
    """What `compared` says of each: those that fit first, each group fastest first."""
    rows: list[ComparedSchedule] = []
    for number, name in enumerate(names):
        if progress is not None:
            progress(number, len(names))
        rows.append(compared(name))
    if progress is not None:
        progress(len(names), len(names))
    return tuple(sorted(rows, key=_order))


def _order(row: ComparedSchedule) -> tuple[int, float]:
    if row.predicted is None:
        return 2, 0.0
    return (0 if row.predicted.fits else 1), row.predicted.step_s


def fastest_s(rows: Sequence[ComparedSchedule]) -> float | None:
    """The step of the fastest that fits, of rows in sequence."""
    return next((row.predicted.step_s for row in rows if _fits(row) and row.predicted), None)


def _fits(row: ComparedSchedule) -> bool:
    return row.predicted is not None and row.predicted.fits


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


def _compared(job: JobSpec, layout: LayoutSpec, name: str) -> ComparedSchedule:
    """One strategy on the job."""
    chosen, compared = strategy(name), as_named(job, name)
    try:
        chosen = strategy_of(compared)
        _require_short(compared, layout, chosen.skeleton)
        case = case_of(replace(compared, layout=layout_for(job, layout, chosen.skeleton)))
        predicted = predicted_of(case)
    except RatrainError as error:
        return ComparedSchedule(name, chosen.skeleton, chosen.doc, None, error.what)
    return ComparedSchedule(name, case.strategy.skeleton, chosen.doc, predicted, "")


def predicted_of(case: Case) -> Predicted:
    """A case proved and simulated in full size."""
    simulation = simulate_proved(case.proved, case.costs)
    return Predicted(
        simulation.step_time_s,
        simulation.bound_bytes,
        simulation.bubble_fraction,
        simulation.feasible,
        max(replica.layout.virtual for replica in case.plan.replicas),
    )


def _require_short(job: JobSpec, layout: LayoutSpec, order: str) -> None:
    """Refuses an order that would have to be written out and is too long for a comparison."""
    micro_batches = job.batch.sequences // (layout.data * job.batch.micro_batch)
    ops = 2 * (job.model.spec.layers + 2) * micro_batches
    if SKELETONS[order].stride(layout.pipeline, layout.virtual) is None and ops > MOST_OPS:
        raise ProgramError(
            f"the order {order} has no repeating part, so all of its {ops:,} compute ops would "
            f"have to be written out; a comparison allows {MOST_OPS:,}. Simulate this schedule "
            "alone, or compare with fewer sequences"
        )


def layout_for(job: JobSpec, layout: LayoutSpec, order: str) -> LayoutSpec:
    """The layout with as many stages per rank as a compute order takes."""
    if SKELETONS[order].chunks:
        enough = job.model.spec.layers >= VIRTUAL * layout.pipeline
        if layout.virtual == 1 and layout.pipeline > 1 and enough:
            return replace(layout, virtual=VIRTUAL, layers="balanced")
        return layout
    return layout if layout.virtual == 1 else replace(layout, virtual=1, layers="balanced")
