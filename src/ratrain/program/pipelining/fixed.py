"""Compute orders out of files, as skeletons like others.

`[schedule] skeleton = "mine.csv"` names a schedule in PyTorch pipelining's CSV. It says its ranks,
stages per rank and micro-batches, so it exists for these alone. Messages, state work and everything
else come from the setup and the passes, as for any skeleton. A file may say more than PyTorch's
form (`program/text/order_csv.py`): the turns of units, and those of reductions and gathers."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from ratrain.errors import ProgramError, SpecError
from ratrain.program.kind import Kind
from ratrain.program.pipelining.csv import Step, csv_setup
from ratrain.program.replicas import Unit
from ratrain.program.skeletons import SKELETONS, Fixed, Place, Skeleton, declare_skeleton
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
    degrees: tuple[int, int, int]  # ranks, stages of each, micro-batches
    split_backward: bool


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
    return _Pipeline(file.steps, (ranks, chunks, replica.micro_batches), setup.split_backward)


def _skeleton(files: Sequence[OrderFile], path: Path) -> Skeleton:
    """A skeleton that yields a file's orders: of each replica its own, or one for all of them."""
    first, *others = pipelines = [_pipeline(file, path) for file in files]
    _require_alike(pipelines)
    fixed = Fixed(
        str(path.resolve()),
        *first.degrees,
        tuple((ranks, count) for ranks, _, count in (other.degrees for other in others)),
    )

    def order(place: Place) -> Iterator[Step]:
        asked = place.ranks, place.chunks, place.micro_batches
        known = dict(enumerate(pipelines)).get(place.replica) if others else first
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
        chunks=fixed.chunks > 1,
        arrival_places=not first.split_backward,
        fixed=fixed,
        written=files[0].written,
    )


def _require_alike(pipelines: Sequence[_Pipeline]) -> None:
    """Refuses what no program says of replicas that differ."""
    if len(pipelines) > 1 and any(pipeline.degrees[1] > 1 for pipeline in pipelines):
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
