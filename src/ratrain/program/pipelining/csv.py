"""PyTorch pipelining's CSV schedules (`pipelining/reading.py` has the form): written from a
program, and read as a compute order.

The form says less than a program. Written: no recovery, no updates, no prefetches, no tensor
sums; gradients are reduced once a step, views gathered once. Read as a compute order: compute alone
counts, since messages and state work follow from the setup and the passes. What a file says of
them itself is proved by `pipelining/check.py`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ratrain.errors import ProgramError
from ratrain.program.actions import Action
from ratrain.program.kind import Kind
from ratrain.program.pipelining.cells import Schedule, steps_of
from ratrain.program.pipelining.reading import read_schedule
from ratrain.program.pipelining.stages import micro_batches_of, ranks_of_stages
from ratrain.program.plain import plain_program
from ratrain.program.program import Program
from ratrain.program.replicas import Replica, Unit, stage
from ratrain.program.setup import Setup
from ratrain.program.walk import walk

Step = tuple[Kind, int, int]
"""(kind, stage, micro-batch), as skeletons yield it."""

COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W)


# ---- writing ----------------------------------------------------------------------------


def write_csv(program: Program, *, comms: bool = False, replica: int = 0) -> str:
    """The schedule of one replica: "compute_only", or "compute_comms" where `comms` is set."""
    setup = program.setup
    if setup.replicas[replica].most_joined > 1:
        raise ProgramError(
            "the CSV of PyTorch's schedules has no word for a stage that computes several "
            "micro-batches at once",
            fix="write the program as text (--form text), or give all stages one micro_batch",
        )
    base, ranks = setup.first_rank[replica], setup.replicas[replica].ranks
    rows: dict[int, list[str]] = {rank: [] for rank in range(ranks)}
    if comms:
        order = _in_running_order(program)
        for rank in rows:
            rows[rank] = list(_with_state_work(program, order.get(base + rank, [])))
    else:
        orders = {rank: _compute_order(program, base + rank) for rank in rows}
        rows = {rank: [_cell(s) if s else "" for s in row] for rank, row in _aligned(orders)}
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows.values())
    return out.getvalue()


def _cell(step: Step) -> str:
    kind, stage, micro_batch = step
    return f"{stage}{kind.name}{micro_batch}"


def _folded(program: Program, rank: int, actions: Iterable[Action]) -> Iterator[Step]:
    """Ops of units as ops of stages: a stage's op takes the place of its last unit's."""
    units = {number: len(member.units) for number, member in program.held_by(rank)}
    left: dict[Step, int] = {}
    for kind, number, _, micro_batch, _ in actions:
        step = kind, number, micro_batch
        left[step] = left.get(step, 1 if kind.is_message else units[number]) - 1
        if not left[step]:
            yield step


def _compute_order(program: Program, rank: int) -> list[Step]:
    actions = (a for (r, _), lane in program.lanes.items() if r == rank for a in lane)
    return list(_folded(program, rank, (a for a in actions if a.kind in COMPUTE)))


def _in_running_order(program: Program) -> dict[int, list[Step]]:
    """For each rank its compute and messages, in one order in which all ranks can run: a send
    and its receive stand side by side in it, so even sends that wait for receivers cannot jam."""
    table = program.table
    walked = walk(table)
    if len(walked.stuck):
        raise ProgramError(
            "a program that cannot run has no CSV with messages", fix="run `ratrain verify` on it"
        )
    actions: dict[int, list[Action]] = {}
    for op in walked.order[walked.order < len(table)].tolist():
        action = table.action(op)
        if action.kind in COMPUTE or action.kind.is_message:
            actions.setdefault(int(table.rank[op]), []).append(action)
    return {rank: list(_folded(program, rank, rows)) for rank, rows in actions.items()}


def _with_state_work(program: Program, steps: list[Step]) -> Iterator[str]:
    """The cells of a rank, with the state work that PyTorch writes into a schedule."""
    setup = program.setup
    compute = [step for step in steps if step[0] in COMPUTE]
    first = {step[1]: step for step in reversed(compute)}
    last = {step[1]: step for step in compute}
    for step in steps:
        stage = step[1]
        if setup.gathers_per_use and step == first[stage]:
            yield f"{stage}UNSHARD"
        yield _cell(step)
        if step == last[stage]:
            if setup.gathers_per_use:
                yield f"{stage}RESHARD"
            if setup.reduces:
                yield f"{stage}REDUCE_GRAD"


def _aligned(orders: Mapping[int, list[Step]]) -> Iterator[tuple[int, list[Step | None]]]:
    """Each rank's steps with a None for every moment in which it waits; a step takes a moment."""
    stages = 1 + max(stage for steps in orders.values() for _, stage, _ in steps)
    done: dict[tuple[bool, int, int], int] = {}  # moment of each forward and each backward
    rows: dict[int, list[Step | None]] = {rank: [] for rank in orders}
    following = {rank: iter(steps) for rank, steps in orders.items()}
    waiting = {rank: next(steps, None) for rank, steps in following.items()}

    def ready(step: Step, moment: int) -> bool:
        kind, stage, micro_batch = step
        if kind is Kind.W:
            return True
        source = stage - 1 if kind is Kind.F else stage + 1
        if not 0 <= source < stages:
            return True
        return done.get((kind is Kind.F, source, micro_batch), moment) < moment

    moment = 0
    while any(waiting.values()):
        progress = False
        for rank, step in waiting.items():
            if step is None or not ready(step, moment):
                rows[rank] += [None] if step else []
                continue
            rows[rank].append(step)
            if step[0] is not Kind.W:
                done[step[0] is Kind.F, step[1], step[2]] = moment
            waiting[rank] = next(following[rank], None)
            progress = True
        if not progress:
            raise ProgramError(
                "a program that cannot run has no aligned CSV", fix="run `ratrain verify` on it"
            )
        moment += 1
    yield from rows.items()


# ---- reading ----------------------------------------------------------------------------


def read_csv(text: str, place: str = "") -> dict[int, list[Step]]:
    """The compute order of every rank; a `ProgramError` names the row, the cell and the word."""
    return compute_orders(read_schedule(text, place))


def compute_orders(schedule: Schedule) -> dict[int, list[Step]]:
    """What each rank of a schedule computes, in order: actions of a group, and those that are F and
    B in one, one after the other, as PyTorch's runtime computes them."""
    return {
        rank: [
            (Kind.named(step), action.stage, action.micro_batch)
            for action in schedule.row(rank)
            for step in steps_of(action)
        ]
        for rank in range(len(schedule.rows))
    }


def csv_setup(orders: Mapping[int, Iterable[Step]], unit: Unit, place: str = "") -> Setup:
    """The setup of a compute order: one replica, one unit like `unit` in every stage, and the
    ranks, stages and micro-batches that the order names."""
    steps = [(rank, *step) for rank, of_rank in orders.items() for step in of_rank]
    rank_of = ranks_of_stages(((number, rank) for rank, _, number, _ in steps), place)
    micro_batches = micro_batches_of((micro_batch for *_, micro_batch in steps), place)
    stages = tuple(
        stage(rank, (replace(unit, name=str(number)),), unit.input_bytes)
        for number, rank in enumerate(rank_of)
    )
    split = any(kind is Kind.I for _, kind, _, _ in steps)
    try:
        return Setup((Replica(stages, micro_batches),), split_backward=split)
    except ProgramError as error:
        raise ProgramError(error.what, place=place, fix=error.fix) from None


def program_of_csv(text: str, unit: Unit, place: str = "") -> Program:
    """The plain program of a CSV schedule, each of its stages one unit like `unit`."""
    return program_of_schedule(read_schedule(text, place), unit)


def program_of_schedule(schedule: Schedule, unit: Unit) -> Program:
    """The plain program of what a schedule computes; messages are derived."""
    orders = compute_orders(schedule)
    return plain_program(csv_setup(orders, unit, schedule.place), orders, "csv")
