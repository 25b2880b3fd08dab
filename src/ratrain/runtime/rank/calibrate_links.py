"""Links between ranks, timed: messages to neighbours, and the exchanges of reductions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from ratrain.models.parameters import ALIGN, aligned
from ratrain.program.kind import Lane
from ratrain.runtime.rank.calibrate_processor import working
from ratrain.runtime.rank.calibration import LinkTimes
from ratrain.runtime.seats import Seat, Seats
from ratrain.runtime.step.network import Network
from ratrain.runtime.step.tensor_peers import sent_of_sum

REPEATS = 3
_BESIDE_REPEATS = 8
"""More, and their mean: what holds them up comes and goes."""
_SMALL, _LARGE = 1 << 16, 1 << 19
"""Elements of the two transfers whose difference gives a link's rate."""


def message_times(
    lane: Lane,
    towards: int,
    device: torch.device,
    network: Network,
    seats: Seats,
    seat: Seat,
    beside: int,
) -> tuple[LinkTimes | None, LinkTimes | None]:
    """Messages to the neighbour in one direction, and from the neighbour in the other; `beside`
    threads compute where one is sent, as they do in a step."""
    to, source = seat.pipeline + towards, seat.pipeline - towards
    sent: LinkTimes | None = None
    received: LinkTimes | None = None
    # A chain would add up waits: even positions send first, then odd ones.
    for turn in (0, 1):
        if seat.pipeline % 2 == turn and 0 <= to < seats.pipeline:
            sent = _message(device, lambda tensor: network.send(lane, tensor, to), beside)
        elif seat.pipeline % 2 != turn and 0 <= source < seats.pipeline:
            received = _message(device, lambda tensor: network.receive(lane, tensor, source), 0)
        network.exchange(None, torch.zeros(1))
    return sent, received


def _message(device: torch.device, transfer: Callable[[Tensor], None], beside: int) -> LinkTimes:
    """One end's times; what threads beside it hold up is in the fixed one."""
    alone = _two_sizes(device, transfer, element_share=1.0)
    tensor = torch.zeros(_SMALL, dtype=torch.float32, device=device)
    with working(beside):
        took_s = fmean(_timed(lambda: transfer(tensor))[0] for _ in range(_BESIDE_REPEATS))
    return replace(
        alone, fixed_s=max(alone.fixed_s, took_s - tensor.nbytes / alone.rate_bytes_per_s)
    )


def collective_times(device: torch.device, network: Network, seats: Seats) -> LinkTimes:
    """Reduce-scatters of two sizes: bytes that one rank sends, over time. As in a step, the buffer
    is padded until all replicas own as much of it."""

    def reduce(flat: Tensor) -> None:
        network.reduce(flat, flat[: len(flat) // seats.data])

    return _two_sizes(
        device,
        reduce,
        element_share=(seats.data - 1) / seats.data,
        multiple_of=ALIGN * seats.data,
    )


def tensor_times(device: torch.device, network: Network, tensor: int) -> LinkTimes | None:
    """Sums over the tensor group of two sizes: bytes that one rank sends, over time."""
    group = network.tensor_group(Lane.TENSOR)
    if group is None:
        return None
    return _two_sizes(device, group.sum_, element_share=sent_of_sum(tensor))


def _two_sizes(
    device: torch.device,
    transfer: Callable[[Tensor], None],
    *,
    element_share: float,
    multiple_of: int = 1,
) -> LinkTimes:
    """The fixed time and the rate, from two sizes. `element_share`: sent, of the elements given,
    whose number is a multiple of `multiple_of`."""
    took_s: list[float] = []
    worked_s: list[float] = []
    sent_bytes: list[float] = []
    for elements in (_SMALL, _LARGE):
        tensor = torch.zeros(aligned(elements, multiple_of), dtype=torch.float32, device=device)
        transfer(tensor)
        worked_before_s = time.process_time()
        took_s.append(median_s(lambda tensor=tensor: transfer(tensor)))
        worked_s.append((time.process_time() - worked_before_s) / REPEATS)
        sent_bytes.append(tensor.nbytes * element_share)
    rate = (sent_bytes[1] - sent_bytes[0]) / max(took_s[1] - took_s[0], 1e-6)
    driving = max(worked_s[1] - worked_s[0], 0.0) / (sent_bytes[1] - sent_bytes[0])
    return LinkTimes(
        max(took_s[0] - sent_bytes[0] / rate, 1e-6),
        rate,
        max(worked_s[0] - driving * sent_bytes[0], 0.0),
        driving,
    )


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began_s = time.perf_counter()
    result = work()
    return time.perf_counter() - began_s, result


def median_s(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    return median(_timed(work)[0] for _ in range(repeats))
