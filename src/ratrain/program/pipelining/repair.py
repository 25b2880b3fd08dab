"""A schedule's compute, with messages that no rule of queues can stop.

Every message gets a moment: when what it carries is made, if each rank computes as soon as it can.
Both its ends stand in their rows after all that is computed by then. So all messages have one
order, which every queue keeps, and each waits for earlier ones and earlier compute alone: nothing
stops. What is computed stays in the order written. UNSHARD, RESHARD, REDUCE_GRAD and
WAIT_REDUCE_GRAD stay where they are right, are left out where they are not, and are added where
they are missing.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ratrain.errors import ProgramError
from ratrain.program.pipelining.cells import COMPUTE, Action, Cell, Schedule
from ratrain.program.pipelining.check import check
from ratrain.program.pipelining.mended import mended_rows
from ratrain.program.pipelining.messages import Name, passes
from ratrain.program.pipelining.queues import TIMES, Queueing, duration, needs_of
from ratrain.program.pipelining.reading import read_schedule
from ratrain.program.pipelining.work import Work, work_of

Ends = dict[tuple[int, int], float]
"""When what a cell computes is over, by the cell's rank and place."""


@dataclass(frozen=True)
class Repaired:
    """A repaired schedule: its file, and what differs from the one before."""

    text: str
    added: tuple[str, ...]
    left_out: tuple[str, ...]
    rows: int
    rows_changed: int


def repaired(schedule: Schedule, times: Mapping[str, float] = TIMES) -> Repaired:
    """The repaired schedule, sound under every rule. A `ProgramError` where compute itself is
    wrong, which no message mends."""
    work = work_of(schedule)
    rows = with_messages(schedule, work, mended_rows(schedule), times)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    found = check(read_schedule(out.getvalue(), schedule.place)).findings_under(Queueing)
    if found:
        raise ProgramError(
            f"what is computed is wrong itself, and no message mends it: {found[0].message}",
            place=schedule.place,
            fix="mend that first",
        )
    before = [[cell.word for cell in row] for row in schedule.rows]
    return Repaired(
        out.getvalue(),
        _more(rows, before),
        _more(before, rows),
        len(rows),
        sum(old != new for old, new in zip(before, rows, strict=True)),
    )


def _more(rows: list[list[str]], others: list[list[str]]) -> tuple[str, ...]:
    """The words that there are more of."""
    words, fewer = (Counter(w for row in side for w in row) for side in (rows, others))
    return tuple((words - fewer).elements())


def with_messages(
    schedule: Schedule, work: Work, rows: list[list[Cell]], times: Mapping[str, float]
) -> list[list[str]]:
    """The rows with every message that compute needs, each at its moment."""
    ends = _ends(schedule, work, times)
    moments = sorted(
        (ends[maker.rank, maker.cell], name) for name, maker in _makers(schedule, work).items()
    )
    sent: list[list[tuple[float, int, str]]] = [[] for _ in rows]  # moment, number, word
    for number, (moment, name) in enumerate(moments):
        sent[schedule.rank_of[name.source]].append((moment, number, name.send))
        sent[schedule.rank_of[name.target]].append((moment, number, name.receive))
    return [
        list(_merged(row, deque(sorted(messages)), rank, ends))
        for rank, (row, messages) in enumerate(zip(rows, sent, strict=True))
    ]


def _merged(
    row: list[Cell], messages: deque[tuple[float, int, str]], rank: int, ends: Ends
) -> Iterator[str]:
    """A row with its messages, each after all that is computed by its moment."""
    for cell in row:
        end = ends.get((rank, cell.actions[0].cell), 0.0)  # of what is not computed: no time
        while messages and messages[0][0] < end:
            yield messages.popleft()[-1]
        yield cell.word
        while messages and messages[0][0] <= end:
            yield messages.popleft()[-1]
    yield from (word for _, _, word in messages)


def _makers(schedule: Schedule, work: Work) -> dict[Name, Action]:
    """The messages that compute needs, and what makes each."""
    made: dict[Name, Action] = {}
    for action in schedule.actions:
        for name in needs_of(action):
            maker = work.maker(name) if passes(schedule, name) else None
            if maker is not None:
                made[name] = maker
    return made


def _ends(schedule: Schedule, work: Work, times: Mapping[str, float]) -> Ends:
    """When each cell of compute is over, if messages wait for nothing but what they carry."""
    makers = _makers(schedule, work)
    cells = [[cell for cell in row if cell.actions[0].act in COMPUTE] for row in schedule.rows]
    ends: Ends = {}
    free = [0.0] * len(cells)  # when each rank has computed what it has
    turn = [0] * len(cells)
    waiting: dict[tuple[int, int], list[int]] = {}  # ranks that need what a cell makes
    ready = deque(range(len(cells)))
    while ready:
        rank = ready.popleft()
        while turn[rank] < len(cells[rank]):
            cell = cells[rank][turn[rank]]
            needs = [makers[n] for a in cell.actions for n in needs_of(a) if n in makers]
            lacks = next((n for n in needs if (n.rank, n.cell) not in ends), None)
            if lacks is not None:
                waiting.setdefault((lacks.rank, lacks.cell), []).append(rank)
                break
            begin = max([free[rank], *(ends[n.rank, n.cell] + times["message"] for n in needs)])
            free[rank] = begin + sum(duration(action, times) for action in cell.actions)
            place = rank, cell.actions[0].cell
            ends[place] = free[rank]
            turn[rank] += 1
            ready.extend(waiting.pop(place, ()))
    for rank, row in enumerate(cells):
        if turn[rank] < len(row):
            raise ProgramError(
                f"{row[turn[rank]].actions[0]} needs what other ranks compute after what they "
                f"wait for: no messages make this order of compute run",
                place=schedule.place,
                fix="change what the ranks compute first",
            )
    return ends
