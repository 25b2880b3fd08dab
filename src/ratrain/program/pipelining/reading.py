"""A file of PyTorch's as a schedule: a row is a rank, a cell an action or a group of actions.

`0F0`, `1B2`, `0I1`, `0W1`, `0SEND_F0`, `1RECV_B0`, `0UNSHARD`, `(0F1;3B0)OVERLAP_F_B`,
`(0SEND_F1;2RECV_F0)BATCH_P2P`. PyTorch knows two formats. "compute_only" has compute alone, a
column is a moment, an empty cell is a wait. "compute_comms" has messages and state work too, in
each rank's order of issue, and no empty cells. An empty cell says nothing here, in either.
Source: torch.distributed.pipelining.schedules of PyTorch 2.13, `_Action` and `_load_csv`; its pull
requests 175572 (`BATCH_P2P`) and 196725 (`WAIT_REDUCE_GRAD`), torchtitan's 4666
(`FULL_FORWARD_BACKWARD`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ratrain.errors import ProgramError
from ratrain.program.pipelining.cells import COMPUTE, GROUPS, MESSAGES, Act, Action, Cell, Schedule
from ratrain.readers.csv import csv_rows
from ratrain.readers.files import shown

_NAMES = frozenset(Act)
_WORD = re.compile(r"(\d{1,6})([A-Z_]{1,40}?)(\d{0,7})", re.ASCII)
_GROUP = re.compile(r"\(([^()]*)\)([A-Z0-9_]{1,40})", re.ASCII)


def read_schedule(text: str, place: str = "") -> Schedule:
    """The schedule of a text; a `ProgramError` names the row, the cell and the word."""
    rows = (row for row in csv_rows(text, place) if row.cells)  # blank lines are no ranks
    return Schedule(
        tuple(_row(rank, row.cells, place) for rank, row in enumerate(rows)),
        place,
    )


def _row(rank: int, words: tuple[str, ...], place: str) -> tuple[Cell, ...]:
    cells = tuple(
        _cell(word.strip(), rank, number, _within(place, f"row {rank + 1}, cell {number + 1}"))
        for number, word in enumerate(words)
        if word.strip()
    )
    if not any(action.act in COMPUTE for cell in cells for action in cell.actions):
        raise ProgramError(
            f"rank {rank} computes nothing",
            place=_within(place, f"row {rank + 1}"),
            fix="leave the row out, or give the rank its actions",
        )
    return cells


def _within(place: str, where: str) -> str:
    return f"{place}, {where}" if place else where


def _cell(word: str, rank: int, number: int, place: str) -> Cell:
    match = _GROUP.fullmatch(word)
    if match is None:
        return Cell((_action(word, rank, number, 0, place),))
    words, group = match.groups()
    if group not in GROUPS:
        raise ProgramError(
            f"{shown(word)} does not name a kind of group",
            place=place,
            fix=f"use {' or '.join(GROUPS)}",
        )
    return Cell(tuple(_parts(words, group, rank, number, place)), group)


def _parts(words: str, group: str, rank: int, number: int, place: str) -> Iterator[Action]:
    for part, word in enumerate(words.split(";")):
        action = _action(word.strip(), rank, number, part, place)
        if action.act not in GROUPS[group]:
            holds = "compute" if GROUPS[group] is COMPUTE else "messages"
            raise ProgramError(
                f"{group} holds {holds}, not {action.word}",
                place=place,
                fix=f"give {action.word} a cell of its own",
            )
        yield action


def _action(word: str, rank: int, number: int, part: int, place: str) -> Action:
    match = _WORD.fullmatch(word)
    if match is None:
        raise ProgramError(
            f"{shown(word)} is not an action",
            place=place,
            fix="write one action per cell, e.g. 2F0, or a group, e.g. (0F1;3B0)OVERLAP_F_B",
        )
    stage, name, micro_batch = match.groups()
    if name not in _NAMES:
        raise ProgramError(
            f"{shown(word)} does not name a kind of action",
            place=place,
            fix=f"use {', '.join((*Act, *GROUPS))}",
        )
    act = Act(name)
    of_micro_batch = act in COMPUTE or act in MESSAGES
    if of_micro_batch and not micro_batch:
        raise ProgramError(
            f"{word!r} does not name a micro-batch", place=place, fix=f"write {word}0"
        )
    if micro_batch and not of_micro_batch:
        raise ProgramError(f"{word!r} names a micro-batch", place=place, fix=f"write {stage}{name}")
    return Action(act, int(stage), int(micro_batch or -1), rank, number, part)
