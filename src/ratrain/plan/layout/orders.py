"""Compute orders: those out of a file, as skeletons like others, and those that are tried where a
job names none.

`[schedule] skeleton = "mine.csv"` names a schedule in PyTorch pipelining's CSV. It says its ranks,
stages per rank and micro-batches, so it exists for these alone. Messages, state work and everything
else come from the setup and the passes, as for any skeleton. A file may say more than PyTorch's
form (`program/text/order_csv.py`): the turns of units, and those of reductions and gathers.

Where a rank holds the whole model, a step in 1F1B begins with gathers that one micro-batch's
forward can hide, and ends with reductions that one micro-batch's backward can hide. Layer-major
orders hide them behind several micro-batches, for the memory of as many. In a pipeline they gain
nothing: the last micro-batch's gradient comes when it comes. There orders that split backward are
tried."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from ratrain.describe.job import JobSpec, LayoutSpec, ScheduleSpec
from ratrain.errors import ProgramError, SpecError
from ratrain.program.kind import Kind
from ratrain.program.pipelining.csv import Step, csv_setup
from ratrain.program.replicas import Unit
from ratrain.program.skeletons import (
    SKELETONS,
    TOGETHER,
    Fixed,
    Place,
    Skeleton,
    declare_skeleton,
    layer_major_name,
)
from ratrain.program.strategies import STRATEGIES, Strategy
from ratrain.program.text.order_csv import OrderFile, read_orders
from ratrain.readers.files import read_text
from ratrain.readers.limits import PROGRAM_BYTES

ENDING = ".csv"


def fixed_order(path: Path) -> str:
    """The name of the skeleton that a file says; it is declared now, if it was not before."""
    text = read_text(path, PROGRAM_BYTES)
    name = f"{path.stem}@{sha256(text.encode()).hexdigest()[:8]}"
    if name not in SKELETONS:
        try:
            declare_skeleton(name, _skeleton(read_orders(text, str(path)), path))
        except ProgramError as error:
            raise SpecError(error.what, place=error.place or str(path), fix=error.fix) from error
    return name


@contextmanager
def order_for_now(text: str) -> Generator[str]:
    """What `[schedule] skeleton` says of an order that no file holds yet; forgotten at the end."""
    before = set(SKELETONS)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "order.csv"
        path.write_text(text)
        name = fixed_order(path)
        try:
            yield str(path)
        finally:
            if name not in before:
                del SKELETONS[name]


def file_of(skeleton: str) -> str:
    """How a plan file names a skeleton: one out of a file by its path, others by their name."""
    fixed = SKELETONS[skeleton].fixed
    return skeleton if fixed is None else fixed.file


@dataclass(frozen=True)
class _Pipeline:
    """The order of one replica, checked."""

    steps: Mapping[int, Sequence[Step]]
    chunks: int
    micro_batches: int
    split_backward: bool

    @property
    def degrees(self) -> tuple[int, int, int]:
        return len(self.steps), self.chunks, self.micro_batches


def _pipeline(file: OrderFile, path: Path) -> _Pipeline:
    """The order of a replica; an error where it is not whole."""
    setup = csv_setup(file.steps, Unit("stage"), str(path))
    (replica,) = setup.replicas
    ranks = len(file.steps)
    chunks, left_over = divmod(len(replica.stages), ranks)
    if left_over:
        raise ProgramError(
            f"{len(replica.stages)} stages cannot be divided equally among {ranks} ranks",
            fix="give each rank the same number of stages",
        )
    for rank, steps in file.steps.items():
        _require_whole(
            rank, steps, [rank + c * ranks for c in range(chunks)], replica.micro_batches
        )
    return _Pipeline(file.steps, chunks, replica.micro_batches, setup.split_backward)


def _skeleton(files: Sequence[OrderFile], path: Path) -> Skeleton:
    """A skeleton that yields a file's orders: of each replica its own, or one for all of them."""
    first, *others = pipelines = [_pipeline(file, path) for file in files]
    _require_alike(pipelines)
    fixed = Fixed(
        str(path.resolve()),
        *first.degrees,
        tuple((len(other.steps), other.micro_batches) for other in others),
    )

    def order(place: Place) -> Iterator[Step]:
        asked = place.ranks, place.chunks, place.micro_batches
        known = pipelines[place.replica] if place.replica < len(pipelines) else None
        known = known if others else first
        if known is None or asked != known.degrees:
            which = f" as replica {place.replica}" if others else ""
            raise ProgramError(
                f"{path.name} is written for {fixed.words}, not for {Fixed('', *asked).words}"
                f"{which}",
                fix=f"use {fixed.words}",
            )
        yield from known.steps[place.rank]

    order.__doc__ = f"The order of {path.name}, for {fixed.words}."
    return Skeleton(
        order,
        split_backward=first.split_backward,
        chunks=first.chunks > 1,
        arrival_places=not first.split_backward,
        fixed=fixed,
        written=files[0].written,
    )


def _require_alike(pipelines: Sequence[_Pipeline]) -> None:
    """Refuses what no program says of replicas that differ."""
    if len(pipelines) > 1 and any(pipeline.chunks > 1 for pipeline in pipelines):
        raise ProgramError(
            "where replicas differ, each rank has one stage", fix="give each stage its own rank"
        )
    if len({pipeline.split_backward for pipeline in pipelines}) > 1:
        raise ProgramError(
            "backward is split in one replica and whole in another",
            fix="write I and W for all of them, or B",
        )


def _require_whole(
    rank: int, steps: Sequence[Step], stages: Sequence[int], micro_batches: int
) -> None:
    """Each micro-batch once forward and once backward in each of the rank's stages, and backward
    in ascending order, in which gradients add up to the same bits in every schedule."""
    backward = [Kind.I, Kind.W] if any(kind is Kind.I for kind, _, _ in steps) else [Kind.B]
    everything = list(range(micro_batches))
    for number in stages:
        for kind in (Kind.F, *backward):
            batches = [m for k, s, m in steps if k is kind and s == number]
            if sorted(batches) != everything:
                raise ProgramError(
                    f"row {rank + 1} has {kind.name} of stage {number} for micro-batches "
                    f"{batches[:8]}, not for each of {micro_batches} once",
                    fix=f"rank r of {len(stages)} stages each computes stages r, r + ranks, ...",
                )
            if kind is not Kind.F and batches != everything:
                raise ProgramError(
                    f"row {rank + 1} has {kind.name} of stage {number} out of order: gradients "
                    "add up from micro-batch 0 on",
                    fix="let backward take micro-batches in ascending order",
                )
    expected = len(stages) * micro_batches * (1 + len(backward))
    if len(steps) != expected:
        raise ProgramError(
            f"row {rank + 1} has {len(steps)} actions of compute, not {expected}",
            fix=f"keep {', '.join(k.name for k in (Kind.F, *backward))} of its own stages only",
        )


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


def layer_orders_of_layout(job: JobSpec, chosen: Strategy, layout: LayoutSpec) -> tuple[str, ...]:
    """Those of a layout."""
    whole_model = layout.pipeline == layout.virtual == 1 < layout.data
    count = job.batch.sequences // (layout.data * job.batch.micro_batch)
    return layer_orders(job, chosen, [count], whole_model=whole_model)


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


def order_name(schedule: ScheduleSpec) -> str:
    """The compute order, where it is not the one that the schedule's name stands for."""
    asked = schedule.skeleton
    return "" if asked in (None, STRATEGIES[schedule.name].skeleton) else asked or ""


def order_words(schedule: ScheduleSpec, strategy: Strategy) -> list[str]:
    """That order as a line of a headline, and what it does at other times than 1F1B."""
    name, together = order_name(schedule), SKELETONS[strategy.skeleton].together
    if together > 1:
        name = name or strategy.skeleton
        return [f"order {name}: a step's first and last {together} micro-batches go layer by layer"]
    if name == "zb-h1":
        return [f"order {name}: weight gradients wait, and fill the pipeline's gaps"]
    return [f"order {name}"] if name else []


SPLIT_ORDERS = ("zb-h1",)
WORTH_SPLIT = 0.03
"""Part of a step that such an order must save in simulation to be taken: what the two halves take
beyond one backward is known to within so much."""


def split_orders(job: JobSpec, chosen: Strategy, *, waits: bool) -> tuple[str, ...]:
    """The orders that split backward and that a job may be in beside the strategy's own; `waits`:
    whether replicas have any that weight gradients could fill."""
    keeps = job.schedule.recovery in ("auto", "keep-all")
    return SPLIT_ORDERS if waits and keeps and takes_other_orders(job, chosen) else ()


def in_split_order(job: JobSpec, skeleton: str) -> JobSpec:
    """The job in such an order, with all activations kept: a rank that has to recover some has no
    memory for further micro-batches, and its gaps are filled by recoveries."""
    ordered = in_order(job, skeleton)
    return replace(ordered, schedule=replace(ordered.schedule, recovery="keep-all"))
