"""Links between ranks, timed: messages to neighbours, and the exchanges of reductions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from math import lcm
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from ratrain.cost.algorithms import DIRECT
from ratrain.models.functions.rows import summed
from ratrain.models.parameters import ALIGN, aligned
from ratrain.profile.processor import working
from ratrain.program.kind import Lane
from ratrain.runtime.rank.calibration.measured import LinkTimes
from ratrain.runtime.seats import Holders, Seat, Seats
from ratrain.runtime.step.exchange.boundaries import receive_boundary, send_boundary
from ratrain.runtime.step.exchange.tensor_peers import sent_of_sum
from ratrain.runtime.step.exchange.unlike_views import UnlikeView
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.states import RankStates

REPEATS = 3
_MESSAGES = 12
"""More, and their mean: what holds them up comes and goes."""
_OP_S = 0.01
_IN_A_ROW_S, _MOST_IN_A_ROW = 0.4, 16
"""Exchanges of a group that are timed one after the other: as many as take so long."""
_ANSWER = 16
"""Elements of a message that says that another has come."""
_BACK = {Lane.SEND_F: Lane.SEND_B, Lane.SEND_B: Lane.SEND_F}
_SMALL, _LARGE = 1 << 18, 1 << 21
"""Bytes, as they are sent, of the two transfers whose difference gives a link's rate."""

Sample = tuple[Tensor, float]
"""A tensor that is transferred, and the bytes that one rank sends of it."""
Typical = Callable[[Callable[[], Any]], tuple[float, int]]
"""Seconds of a transfer, and how many were made for that."""


def message_times(
    lane: Lane,
    towards: int,
    states: RankStates,
    network: Network,
    seats: Seats,
    seat: Seat,
    beside: int,
    elements: int,
    *,
    divides_rows: bool,
) -> tuple[LinkTimes | None, LinkTimes | None]:
    """Messages to the neighbour in one direction, and from the neighbour in the other, as boundary
    tensors of so many elements travel; `beside` threads compute where one is sent, as they do in a
    step. `divides_rows`: each rank of a tensor group sends its own part."""
    to, source = seat.pipeline + towards, seat.pipeline - towards
    depth = seats.depth(seat.data)
    sent: LinkTimes | None = None
    received: LinkTimes | None = None

    def ends(neighbour: int) -> _Ends:
        degrees = seat.division.degree, seats.degree(neighbour, seat.data)
        division = (degrees[0], lcm(*degrees)) if divides_rows else (1, 1)
        return _Ends(states, network, lane, neighbour, *division)

    # A chain would add up waits: even positions send first, then odd ones.
    for turn in (0, 1):
        if seat.pipeline % 2 == turn and 0 <= to < depth:
            sent = _sent(ends(to), elements, beside)
        elif seat.pipeline % 2 != turn and 0 <= source < depth:
            received = _received(ends(source), elements)
        network.barrier()
    return sent, received


@dataclass(frozen=True)
class _Ends:
    """A rank and the neighbour to which it sends, or from which it receives. Of a tensor the rank
    has one of `parts`; the tensor has a multiple of `multiple` elements."""

    states: RankStates
    network: Network
    lane: Lane
    neighbour: int
    parts: int
    multiple: int

    def tensor(self, elements: int) -> Tensor:
        """What the rank has of a boundary tensor of so many elements."""
        own = aligned(elements, self.multiple) // self.parts
        return torch.zeros(own, dtype=self.states.dtype, device=self.states.device)

    def of_size(self, sent_bytes: int) -> Sample:
        """What the rank has of a boundary tensor that travels as so many bytes, and its own."""
        tensor = self.tensor(sent_bytes // self.wire.itemsize)
        return tensor, len(tensor) * self.wire.itemsize

    @property
    def wire(self) -> torch.dtype:
        return self.states.wire.boundaries

    def send(self, tensor: Tensor) -> None:
        send_boundary(self.network, self.lane, tensor, self.neighbour, self.wire)

    def receive(self, tensor: Tensor) -> None:
        receive_boundary(self.network, self.lane, tensor, self.neighbour, self.wire)

    def send_answered(self, tensor: Tensor) -> None:
        """Sends, and waits until the neighbour has all."""
        self.send(tensor)
        self.network.receive(_BACK[self.lane], self._answer(), self.neighbour)

    def receive_and_answer(self, tensor: Tensor) -> None:
        self.receive(tensor)
        self.network.send(_BACK[self.lane], self._answer(), self.neighbour)

    def _answer(self) -> Tensor:
        """What both ends know the size of, whatever they compute in."""
        return self.tensor(_ANSWER).to(self.wire)


def _sent(ends: _Ends, elements: int, beside: int) -> LinkTimes:
    """A sender's times. Its rate is that of long messages; the rest is that of one message of a
    step, from the end of the op before it until the neighbour has it: under a quota what computes
    beside holds it up, and what passes at once after a pause hastens it."""
    alone = _two_sizes(ends.of_size, ends.send)
    answer_s = median_s(lambda: ends.send_answered(ends.tensor(_ANSWER))) / 2
    tensor = ends.tensor(elements)
    with working(beside):
        took_s = fmean(_after_an_op(lambda: ends.send_answered(tensor)) for _ in range(_MESSAGES))
    alone_s = len(tensor) * ends.wire.itemsize / alone.rate_bytes_per_s
    beyond_s = took_s - answer_s - alone_s
    at_once_bytes = max(0.0, -beyond_s) * alone.rate_bytes_per_s
    return replace(alone, fixed_s=max(beyond_s, 1e-6), at_once_bytes=at_once_bytes)


def _received(ends: _Ends, elements: int) -> LinkTimes:
    """The other end of `_sent`."""
    alone = _two_sizes(ends.of_size, ends.receive)
    median_s(lambda: ends.receive_and_answer(ends.tensor(_ANSWER)))
    tensor = ends.tensor(elements)
    for _ in range(_MESSAGES):
        ends.receive_and_answer(tensor)
    return alone


def _after_an_op(transfer: Callable[[], None]) -> float:
    """Seconds of a transfer that begins while this thread computes, as at an op's end: under a
    quota not within a pause."""
    end_s = time.perf_counter() + _OP_S
    while time.perf_counter() < end_s:
        pass
    return _timed(transfer)[0]


def collective_times(states: RankStates, network: Network) -> LinkTimes | None:
    """Reduce-scatters of two sizes, in the dtype in which gradients travel: bytes that one rank
    sends, over time. As in a step, the buffer is padded until all holders own as much of it. A rank
    whose units are held by different ranks times each group, in model order as all do, and takes
    the mean; None where nobody else holds any of its units."""
    groups = {
        (unit.holders, unit.by.reduces): unit.place
        for unit in states.units
        if len(unit.holders) > 1
    }
    return _mean(
        _group_times(states, network, holders, place, by) for (holders, by), place in groups.items()
    )


def across_times(states: RankStates, network: Network) -> LinkTimes | None:
    """The same of weights among the owners of a range at several sites; None where no sites
    average."""
    groups = {
        each.holders: unit.across.site
        for unit in states.units
        if unit.across is not None
        for each in unit.ranges
    }
    return _mean(
        _group_times(states, network, holders, site, DIRECT, Lane.AVERAGE)
        for holders, site in groups.items()
    )


def gather_times(states: RankStates, network: Network) -> LinkTimes | None:
    """Gathers of views among ranks that compute in different dtypes, of two sizes, as a step has
    them: bytes that a rank would send in the widest of these dtypes, over time. None where all
    holders of its units compute alike, or hold them at different tensor degrees."""
    groups = {
        (unit.holders, unit.dtypes, unit.by.gathers): unit.place
        for unit in states.units
        if unit.dtypes and unit.slots is None
    }
    return _mean(
        _gather_group_times(states, network, holders, place, dtypes, by)
        for (holders, dtypes, by), place in groups.items()
    )


def _mean(times: Iterable[LinkTimes]) -> LinkTimes | None:
    rows = [astuple(link) for link in times]
    return LinkTimes(*map(fmean, zip(*rows, strict=True))) if rows else None


def _group_times(
    states: RankStates,
    network: Network,
    holders: Holders,
    place: int,
    by: str,
    lane: Lane = Lane.REDUCE,
) -> LinkTimes:
    """Of one group, in which this rank has a place."""
    wire, count = states.wire.gradients, len(holders)

    def gradient(size_bytes: int) -> Sample:
        elements = aligned(size_bytes // wire.itemsize, ALIGN * count)
        flat = torch.zeros(elements, dtype=wire, device=states.device)
        return flat, flat.nbytes * (count - 1) / count

    def reduce(flat: Tensor) -> None:
        network.reduce(flat, flat[: len(flat) // count], holders, by, lane)

    return _two_sizes(gradient, reduce, _in_a_row(states, network, holders, place, lane))


def _gather_group_times(
    states: RankStates,
    network: Network,
    holders: Holders,
    place: int,
    dtypes: tuple[torch.dtype, ...],
    by: str,
) -> LinkTimes:
    """The same of views in unlike dtypes."""
    count, widest = len(holders), max(dtype.itemsize for dtype in dtypes)

    def gathered(size_bytes: int) -> Sample:
        elements = aligned(size_bytes // widest, ALIGN * count)
        flat = torch.zeros(elements, dtype=states.dtype, device=states.device)
        return flat, elements * widest * (count - 1) / count

    largest = aligned(_LARGE // widest, ALIGN * count) // count
    master = torch.zeros(largest, dtype=torch.float32, device=states.device)

    def gather(flat: Tensor) -> None:
        part = master[: len(flat) // count]
        view = UnlikeView(flat, part, holders, place, dtypes)
        network.gather_unlike(Lane.GATHER, view, by)

    return _two_sizes(gathered, gather, _in_a_row(states, network, holders, place))


def _in_a_row(
    states: RankStates,
    network: Network,
    holders: Holders,
    place: int,
    lane: Lane = Lane.REDUCE,
) -> Typical:
    """Times a group's transfers that follow each other without a pause, as at a step's end: each
    begins when the slowest holder has ended the one before, and that is part of their rate."""

    def in_a_row(transfer: Callable[[], Any]) -> tuple[float, int]:
        estimates_s = torch.zeros(len(holders), device=states.device)
        estimates_s[place] = _timed(transfer)[0]
        network.gather(lane, estimates_s, holders)  # all holders need the same number
        fitting = round(_IN_A_ROW_S / float(estimates_s.max()))
        repeats = min(max(fitting, REPEATS), _MOST_IN_A_ROW)
        took_s, _ = _timed(lambda: [transfer() for _ in range(repeats)])
        return took_s / repeats, repeats

    return in_a_row


def tensor_times(device: torch.device, network: Network) -> LinkTimes | None:
    """Sums over the tensor group of two sizes, as they are made in ops of their own: bytes that one
    rank sends, over time."""
    group = network.tensor_group(Lane.TENSOR)
    if group is None:
        return None

    degree = group.division.degree
    sent = sent_of_sum(degree, divides_rows=group.divides_rows)

    def part(size_bytes: int) -> Sample:
        shape = (degree, size_bytes // (4 * degree))
        parts = torch.zeros(shape, dtype=torch.float32, device=device)
        return parts, parts.nbytes * sent

    return _two_sizes(part, lambda parts: summed(parts, group))


def _median(transfer: Callable[[], Any]) -> tuple[float, int]:
    return median_s(transfer), REPEATS


def _two_sizes(
    made: Callable[[int], Sample],
    transfer: Callable[[Tensor], Any],
    typical: Typical = _median,
) -> LinkTimes:
    """The fixed time and the rate, from two sizes. `made`: the sample of a size; `typical`: seconds
    of a transfer, and how many it made for that."""
    took_s: list[float] = []
    worked_s: list[float] = []
    all_sent_bytes: list[float] = []
    for size_bytes in (_SMALL, _LARGE):
        tensor, sent_bytes = made(size_bytes)
        transfer(tensor)
        worked_before_s = time.process_time()
        seconds, repeats = typical(lambda tensor=tensor: transfer(tensor))
        took_s.append(seconds)
        worked_s.append((time.process_time() - worked_before_s) / repeats)
        all_sent_bytes.append(sent_bytes)
    rate = (all_sent_bytes[1] - all_sent_bytes[0]) / max(took_s[1] - took_s[0], 1e-6)
    driving = max(worked_s[1] - worked_s[0], 0.0) / (all_sent_bytes[1] - all_sent_bytes[0])
    return LinkTimes(
        max(took_s[0] - all_sent_bytes[0] / rate, 1e-6),
        rate,
        max(worked_s[0] - driving * all_sent_bytes[0], 0.0),
        driving,
    )


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began_s = time.perf_counter()
    result = work()
    return time.perf_counter() - began_s, result


def median_s(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    return median(_timed(work)[0] for _ in range(repeats))
