"""What every rank recorded, as one timeline: measured.json.

A transfer has partners: a message its sender, a collective the ranks that hold its unit, a sum of
tied copies the other end. Its span begins when the last of them has begun, so that it shows the
transfer and not the wait for the others.
Ranks' clocks are put together by each machine's own time of day.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ratrain.program.kind import Kind, Lane, Partners
from ratrain.program.setup import Setup
from ratrain.runtime.run_files import read_records
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.runtime.seats import Seat, Seats, at_sites, holders_of, numbers_at_sites
from ratrain.runtime.step.exchange.cells import peers_at, peers_at_other_end
from ratrain.timeline.timeline import Span, Timeline, write_timeline

_RECEIVE = re.compile(r"(\d+)RECV_([FB])(\d+)(@\d+)?")
_UNIT = re.compile(r"(\d+)(?:\.(\d+))?(.+)")
_TIE = Kind.TieSync.name


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
    return timeline_of_records(ran, _Partners(folder.read_setup(), spec.seats)) if ran else None


def write_measured(folder: RunFolder, spec: RunSpec) -> Timeline | None:
    """Writes measured.json, where there is something to write, and returns it."""
    timeline = merge_records(folder, spec)
    if timeline is not None:
        write_timeline(timeline, folder.measured)
    return timeline


def timeline_of_records(ran: Iterable[_Ran], partners: _Partners) -> Timeline:
    """Spans that begin with their last partner; the first one at zero."""
    rows = list(ran)
    began = {(op.seat.world_rank, op.step, partners.shared_name(op)): op.start_s for op in rows}
    starts = [_start_s(op, began, partners) for op in rows]
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


class _Partners:
    """Who an op happened together with, and what all of them call it."""

    def __init__(self, setup: Setup, seats: Seats) -> None:
        self._setup, self._seats = setup, seats
        self._collectives = {k.lane.word: k.partners for k in Kind if k.is_collective}
        self._unit_names = [
            {
                (number, unit): name
                for number, stage in enumerate(replica.stages)
                for unit, name in enumerate(stage.names)
            }
            for replica in setup.replicas
        ]
        self._holders = [holders_of(setup, seats, tensor) for tensor in range(seats.tensor)]
        unlike = numbers_at_sites(setup, seats).items()
        self._everyone = {name: tuple(chain(*chain(*sites))) for name, sites in unlike}

    def shared_name(self, op: _Ran) -> str:
        """A unit has a place of its own in each replica's words, so a collective is called by the
        unit's name; a sum of tied copies has another word at each end."""
        if op.word.partition("@")[0].endswith(_TIE):
            return _TIE
        unit = self._unit_of(op) if op.lane in self._collectives else None
        return " ".join(unit) if unit else op.word

    def of(self, op: _Ran) -> tuple[str, Sequence[int]]:
        """The partners' name for it, and their ranks; of a message, all that may have sent it."""
        seat, shared = op.seat, self.shared_name(op)
        tensor = seat.division.rank
        received = _RECEIVE.fullmatch(op.word)
        if received is not None:
            stage, way, micro_batch, of_period = received.groups()
            source = int(stage) + (1 if way == "B" else -1)
            sent = f"{source}SEND_{way}{micro_batch}{of_period or ''}"
            return sent, self._senders(seat, source)
        if shared == _TIE:
            return shared, [seat.world_rank, *peers_at_other_end(self._seats, seat)]
        if op.lane == Lane.TENSOR.word:
            return shared, self._seats.tensor_group(seat.pipeline, seat.data)
        unit = self._unit_of(op) if op.lane in self._collectives else None
        if unit is None:
            return shared, [seat.world_rank]
        holders = self._holders[tensor][unit[0]]
        if self._collectives[op.lane] is Partners.HOLDERS:
            return shared, self._everyone.get(unit[0], holders)
        here = at_sites(self._setup, self._seats, holders)
        return shared, next(site for site in here if seat.world_rank in site)

    def _unit_of(self, op: _Ran) -> tuple[str, str] | None:
        """The name of the unit that an op's word begins with, and the rest of the word; None where
        the program has no such unit."""
        match = _UNIT.fullmatch(op.word)
        if match is None:
            return None
        stage, unit, rest = match.groups()
        names = self._unit_names[self._seats.replica_class[op.seat.data]]
        name = names.get((int(stage), int(unit or 0)))
        return None if name is None else (name, rest)

    def _senders(self, seat: Seat, stage: int) -> list[int]:
        """The ranks that send a rank what comes from a stage."""
        stages = self._setup.replicas[self._seats.replica_class[seat.data]].stages
        if not 0 <= stage < len(stages):
            return []
        return [
            peer
            for member in stages[stage].members
            for peer in peers_at(self._seats, seat, member.rank)
        ]


def _start_s(op: _Ran, began: Mapping[tuple[int, int, str], float], partners: _Partners) -> float:
    """When an op and all of its partners had begun; never behind its end."""
    word, ranks = partners.of(op)
    times = [began.get((rank, op.step, word), op.start_s) for rank in ranks]
    return min(max([op.start_s, *times]), op.end_s)
