"""What every rank recorded, as one timeline: measured.json.

A transfer has partners: a message its sender, a collective its group's ranks, a sum of tied copies
the other end. Its span begins when the last of them has begun, so that it shows the transfer and
not the wait for the others.
Ranks' clocks are put together by each machine's own time of day.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.program.kind import Kind, Lane
from ratrain.runtime.run_files import read_records
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.runtime.seats import Seat
from ratrain.timeline.timeline import Span, Timeline, write_timeline

_SEND = re.compile(r"(\d+)SEND_[FB]\d+")
_RECEIVE = re.compile(r"(\d+)RECV_([FB])(\d+)")
_TIE = Kind.TieSync.name
_COLLECTIVES = (Lane.REDUCE.word, Lane.GATHER.word)


@dataclass(frozen=True)
class _Ran:
    """One op of one rank, in seconds since 1970."""

    seat: Seat
    step: int
    lane: str
    word: str
    start_s: float
    end_s: float


def merge_records(folder: RunFolder, spec: RunSpec) -> Timeline | None:
    """The measured timeline, with world ranks; None where some rank has recorded nothing."""
    paths = [folder.rank_file(seat.world_rank, "records") for seat in spec.seats.all()]
    if not all(path.exists() for path in paths):
        return None
    ran = [
        op
        for seat, path in zip(spec.seats.all(), paths, strict=True)
        for op in _ran(seat, read_records(path, seat.world_rank))
    ]
    return timeline_of_records(ran) if ran else None


def write_measured(folder: RunFolder, spec: RunSpec) -> Timeline | None:
    """Writes measured.json, where there is something to write, and returns it."""
    timeline = merge_records(folder, spec)
    if timeline is not None:
        write_timeline(timeline, folder.measured)
    return timeline


def timeline_of_records(ran: Iterable[_Ran]) -> Timeline:
    """Spans that begin with their last partner; the first one at zero."""
    rows = list(ran)
    began = {(op.seat.world_rank, op.step, _meeting(op.word)): op.start_s for op in rows}
    seats = {
        (op.seat.pipeline, op.seat.data, op.seat.division.rank): op.seat.world_rank for op in rows
    }
    senders = _stage_ranks(rows)
    starts = [_start_s(op, began, seats, senders) for op in rows]
    origin_s = min(starts)
    spans = [
        Span(op.step, op.seat.world_rank, op.lane, op.word, at - origin_s, op.end_s - origin_s)
        for op, at in zip(rows, starts, strict=True)
    ]
    return Timeline("runtime", tuple(sorted(spans, key=lambda span: span.start_s)))


def _ran(seat: Seat, body: dict[str, Any]) -> Iterable[_Ran]:
    clock_s = body["clock_s"]
    for row in body["rows"]:
        step, lane, word, _reached_s, start_s, end_s, *_ = row
        yield _Ran(seat, step, lane, word, clock_s + start_s, clock_s + end_s)


def _meeting(word: str) -> str:
    """What partners call an op alike; a sum of tied copies has another word at each end."""
    return _TIE if word.endswith(_TIE) else word


def _stage_ranks(rows: Iterable[_Ran]) -> dict[int, int]:
    """The pipeline rank of each stage that sends."""
    sends = ((_SEND.fullmatch(op.word), op.seat.pipeline) for op in rows)
    return {int(send[1]): pipeline for send, pipeline in sends if send is not None}


def _start_s(
    op: _Ran,
    began: Mapping[tuple[int, int, str], float],
    seats: Mapping[tuple[int, int, int], int],
    stage_ranks: Mapping[int, int],
) -> float:
    """When an op and all of its partners had begun; never behind its end."""
    partners = [op.seat.world_rank]
    pipeline, data, tensor = op.seat.pipeline, op.seat.data, op.seat.division.rank
    word = op.word
    received = _RECEIVE.fullmatch(word)
    if received is not None:
        stage, way, micro_batch = received.groups()
        source = int(stage) + (1 if way == "B" else -1)
        word = f"{source}SEND_{way}{micro_batch}"
        sender = seats.get((stage_ranks.get(source, -1), data, tensor))
        partners = [] if sender is None else [sender]
    elif op.lane in _COLLECTIVES:
        partners = [rank for (p, _, t), rank in seats.items() if (p, t) == (pipeline, tensor)]
    elif op.lane == Lane.TENSOR.word:
        partners = [rank for (p, d, _), rank in seats.items() if (p, d) == (pipeline, data)]
    if _meeting(word) == _TIE:
        partners = [rank for (_, d, t), rank in seats.items() if (d, t) == (data, tensor)]
    times = [began.get((rank, op.step, _meeting(word)), op.start_s) for rank in partners]
    return min(max([op.start_s, *times]), op.end_s)
