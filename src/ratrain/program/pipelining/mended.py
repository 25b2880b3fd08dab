"""The rows of a schedule without messages, and with gathers and reductions that are right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ratrain.program.pipelining.cells import COMPUTE, MESSAGES, Act, Action, Cell, Schedule
from ratrain.program.pipelining.weights import GATHERS, REDUCTIONS, last_maker


def mended_rows(schedule: Schedule) -> list[list[Cell]]:
    """The rows. A schedule that says nothing of gathers, of reductions or of waits for them gets
    none."""
    there = {action.act for action in schedule.actions}
    own: list[set[int]] = [set() for _ in schedule.rows]
    for stage, rank in enumerate(schedule.rank_of):
        own[rank].add(stage)
    rows: list[list[Cell]] = []
    for rank, cells in enumerate(schedule.rows):
        stages = own[rank]
        row: Iterable[Cell] = (
            cell
            for cell in cells
            if cell.actions[0].act not in MESSAGES and cell.actions[0].stage in stages
        )
        if there & REDUCTIONS:
            of_stages = [schedule.of_stages[stage] for stage in stages]
            row = _reduced(list(row), of_stages, awaited=Act.WAIT_REDUCE_GRAD in there)
        rows.append(_gathered(row) if there & GATHERS else list(row))
    return rows


def _made(act: Act, like: Action) -> Cell:
    """A cell of its own for what a stage lacks."""
    return Cell((Action(act, like.stage, -1, like.rank, -1),))


def _reduced(
    row: list[Cell], of_stages: Iterable[Sequence[Action]], *, awaited: bool
) -> Iterator[Cell]:
    """A row that reduces the gradients of each stage once, after the last that adds to them."""
    kept: set[Action] = set()
    added: dict[Action, list[Cell]] = {}  # what follows an action
    for of_stage in of_stages:
        place = last = last_maker(of_stage)
        if place is None or last is None:
            continue
        acts = (Act.REDUCE_GRAD, Act.WAIT_REDUCE_GRAD) if awaited else (Act.REDUCE_GRAD,)
        for act in acts:
            later = (s for s in of_stage if s.act is act and s.turn > place.turn)
            right = next(later, None)
            if right is None:
                added.setdefault(place, []).append(_made(act, last))
            else:
                kept.add(right)
                place = right
    for cell in row:
        if cell.actions[0].act not in REDUCTIONS or cell.actions[0] in kept:
            yield cell
            for action in cell.actions:
                yield from added.get(action, ())


def _gathered(row: Iterable[Cell]) -> list[Cell]:
    """A row that gathers the weights of each stage before it computes and lets go of them after."""
    cells: list[Cell] = []
    held: dict[int, Cell] = {}  # its gather, of each stage whose weights are there
    used: set[int] = set()
    for cell in row:
        first = cell.actions[0]
        if first.act is Act.UNSHARD:
            if first.stage in held:
                continue
            held[first.stage] = cell
        elif first.act is Act.RESHARD:
            _let_go(cells, held, used, cell)
            continue
        elif first.act in COMPUTE and first.act is not Act.FULL_FORWARD_BACKWARD:
            for action in cell.actions:
                if action.stage not in held:
                    held[action.stage] = _made(Act.UNSHARD, action)
                    cells.append(held[action.stage])
                used.add(action.stage)
        cells.append(cell)
    for gather in list(held.values()):
        _let_go(cells, held, used, _made(Act.RESHARD, gather.actions[0]))
    return cells


def _let_go(cells: list[Cell], held: dict[int, Cell], used: set[int], cell: Cell) -> None:
    """Ends what a RESHARD ends; a gather that nothing used is left out, and so is the RESHARD of
    weights that are not there."""
    stage = cell.actions[0].stage
    gather = held.pop(stage, None)
    if gather is not None and stage in used:
        cells.append(cell)
    elif gather is not None:
        cells[:] = [other for other in cells if other is not gather]
    used.discard(stage)
