"""A short calibration before the first step: every kind of op timed on its own rank.

What is timed is what will run: the units' own forward and backward on a random micro-batch, the
optimizer on the owned part, a boundary tensor sent to the next stage, reductions and gathers of
two sizes. The model's weights, gradients and data order are left as they were. From the times of
all ranks come the costs that the simulator predicts this very run with.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from ratrain.describe.train import TrainSpec
from ratrain.models.units import MicroBatch
from ratrain.program.actions import BARRIERS, Kind, Lane
from ratrain.program.program import Program
from ratrain.runtime.allocator import Allocator
from ratrain.runtime.network import Network
from ratrain.runtime.seats import Seat, Seats
from ratrain.runtime.states import RankStates, UnitState
from ratrain.runtime.tied import tie_work
from ratrain.simulate.costs import Costs, Floats, Work, fixed_work

REPEATS = 3
_SMALL, _LARGE = 1 << 16, 1 << 18
"""Elements of the two transfers whose difference gives a link's rate."""


@dataclass(frozen=True)
class UnitTimes:
    """Seconds of one unit's ops, and the most bytes that each needed beside its states."""

    forward_s: float
    recovery_s: float
    backward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    update_s: float
    elements: int  # of the flat buffer
    scratch_bytes: int


@dataclass(frozen=True)
class LinkTimes:
    """A transfer takes `fixed_s` and its bytes over the rate."""

    fixed_s: float
    rate_bytes_per_s: float


@dataclass(frozen=True)
class Calibration:
    """One rank's."""

    program_rank: int
    units: tuple[UnitTimes, ...]
    message: LinkTimes | None  # to the next stage
    message_back: LinkTimes | None
    collective: LinkTimes | None  # bytes that one rank sends, of reductions and gathers
    exchange_s: float  # a small round over all ranks


def calibrate(
    states: RankStates,
    network: Network,
    seats: Seats,
    seat: Seat,
    train: TrainSpec,
    boundary: tuple[int, int, int],
    vocab: int,
    allocator: Allocator,
) -> Calibration:
    """This rank's calibration. All ranks must call it together: they time links in pairs."""
    batch = _random_batch(boundary, vocab, states.device)
    known: dict[tuple[Any, ...], UnitTimes] = {}
    units: list[UnitTimes] = []
    for unit in states.units:
        key = (unit.local.first, unit.local.last, unit.padded)
        if key not in known:
            known[key] = _unit_times(unit, states, train, boundary, batch, allocator)
        units.append(known[key])
    network.exchange(None, torch.zeros(1))
    forward = _message_times(Lane.SEND_F, +1, states, network, seats, seat)
    back = _message_times(Lane.SEND_B, -1, states, network, seats, seat)
    collective = _collective_times(states, network, seats) if seats.data > 1 else None
    exchange_s = _median_s(lambda: network.exchange(Lane.UPDATE, torch.zeros(8)), REPEATS)
    return Calibration(seat.program_rank, tuple(units), forward, back, collective, exchange_s)


def gathered(own: Calibration, network: Network) -> list[Calibration]:
    """All ranks' calibrations, by world rank."""
    bodies = network.exchange_bytes(json.dumps(asdict(own)).encode())
    return [_of_json(json.loads(body)) for body in bodies]


def _of_json(body: dict[str, Any]) -> Calibration:
    def link(name: str) -> LinkTimes | None:
        return None if body[name] is None else LinkTimes(**body[name])

    return Calibration(
        body["program_rank"],
        tuple(UnitTimes(**row) for row in body["units"]),
        link("message"),
        link("message_back"),
        link("collective"),
        body["exchange_s"],
    )


# ---- compute ----------------------------------------------------------------------------


def _random_batch(boundary: tuple[int, int, int], vocab: int, device: torch.device) -> MicroBatch:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab, boundary[:2], generator=generator).to(device)
    return MicroBatch(tokens, tokens)


def _unit_times(
    unit: UnitState,
    states: RankStates,
    train: TrainSpec,
    boundary: tuple[int, int, int],
    batch: MicroBatch,
    allocator: Allocator,
) -> UnitTimes:
    if unit.view is None:
        unit.weights.attach_view(states.gathered[0][: unit.padded])
    shape = (0,) if unit.local.first else boundary
    x = torch.randn(shape, dtype=states.dtype, device=states.device)
    gradient = torch.zeros(unit.padded, dtype=states.dtype, device=states.device)
    seed = torch.tensor(1e-6) if unit.local.last else torch.full(boundary, 1e-6, dtype=states.dtype)
    seed = seed.to(states.device)
    unit.weights.attach_gradient(gradient)

    def bare() -> None:
        with torch.no_grad():
            unit.unit.forward(unit.weights, x, batch)

    def kept() -> tuple[Any, Tensor]:
        leaf = x.detach().requires_grad_()
        return get_gradient_edge(unit.unit.forward(unit.weights, leaf, batch)), leaf

    def back(graph: tuple[Any, Tensor]) -> None:
        torch.autograd.grad([graph[0]], [graph[1]], [seed], allow_unused=True)

    times: dict[str, list[float]] = {name: [] for name in ("bare", "kept", "back", "split")}
    scratch = 0
    for turn in range(REPEATS + 1):
        times["bare"].append(_timed(bare)[0])
        took_s, graph = _timed(kept)
        times["kept"].append(took_s)
        held = allocator.held_bytes
        allocator.reset_peak()
        times["back"].append(_timed(lambda graph=graph: back(graph))[0])
        scratch = max(scratch, allocator.peak_bytes - held)
        graph = kept()
        deferred = unit.weights.defer()
        split_s = _timed(lambda graph=graph: back(graph))[0]
        unit.weights.stop_deferring()
        times["split"].append(split_s)
        unit.weights.play(deferred)
        if turn == 0:  # the first time, caches and pages are cold
            for row in times.values():
                row.clear()
    unit.weights.attach_gradient(None)
    backward_s, split_s = median(times["back"]), median(times["split"])
    return UnitTimes(
        forward_s=median(times["bare" if unit.local.recovered else "kept"]),
        recovery_s=median(times["kept"]),
        backward_s=backward_s,
        input_gradient_s=split_s,
        weight_gradient_s=max(backward_s - split_s, 0.0),
        update_s=_update_s(unit, train),
        elements=unit.padded,
        scratch_bytes=scratch,
    )


def _update_s(unit: UnitState, train: TrainSpec) -> float:
    """The optimizer on copies of a piece of the part, drawn on to the whole."""
    part = unit.part
    count = min(1 << 18, part.end - part.begin)
    copies = type(part)(
        0, count, count, *(t[:count].clone() for t in (part.weights, part.moment1, part.moment2))
    )
    gradient = torch.zeros(count, dtype=torch.float32, device=part.weights.device)
    took_s = _median_s(lambda: copies.update(gradient, train, 0, 1.0), REPEATS)
    return took_s * (part.end - part.begin) / count


# ---- links ------------------------------------------------------------------------------


def _message_times(
    lane: Lane, towards: int, states: RankStates, network: Network, seats: Seats, seat: Seat
) -> LinkTimes | None:
    """Messages to the neighbour in one direction; receives what the other neighbour sends."""
    to, source = seat.pipeline + towards, seat.pipeline - towards
    # A chain would add up waits: even positions send first, then odd ones.
    found: LinkTimes | None = None
    for turn in (0, 1):
        if seat.pipeline % 2 == turn and 0 <= to < seats.pipeline:
            found = _two_sizes(
                states, lambda tensor: network.send(lane, tensor, to), element_share=1.0
            )
        elif seat.pipeline % 2 != turn and 0 <= source < seats.pipeline:
            _two_sizes(
                states, lambda tensor: network.receive(lane, tensor, source), element_share=1.0
            )
        network.exchange(None, torch.zeros(1))
    return found


def _collective_times(states: RankStates, network: Network, seats: Seats) -> LinkTimes:
    """Reduce-scatters of two sizes: bytes that one rank sends, over time."""

    def reduce(flat: Tensor) -> None:
        network.reduce(flat, flat[: len(flat) // seats.data])

    return _two_sizes(states, reduce, element_share=(seats.data - 1) / seats.data)


def _two_sizes(
    states: RankStates, transfer: Callable[[Tensor], None], *, element_share: float
) -> LinkTimes:
    """The fixed time and the rate, from two sizes. `element_share`: sent, of the elements given."""
    took_s: list[float] = []
    sent: list[float] = []
    for elements in (_SMALL, _LARGE):
        tensor = torch.zeros(elements * 4, dtype=torch.uint8, device=states.device)
        tensor = tensor.view(torch.float32)
        transfer(tensor)
        took_s.append(_median_s(lambda tensor=tensor: transfer(tensor), REPEATS))
        sent.append(tensor.nbytes * element_share)
    rate = (sent[1] - sent[0]) / max(took_s[1] - took_s[0], 1e-6)
    return LinkTimes(max(took_s[0] - sent[0] / rate, 1e-6), rate)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began_s = time.perf_counter()
    result = work()
    return time.perf_counter() - began_s, result


def _median_s(work: Callable[[], Any], repeats: int) -> float:
    return median(_timed(work)[0] for _ in range(repeats))


# ---- the costs of this run --------------------------------------------------------------


def costs_of_run(program: Program, found: list[Calibration], element_bytes: int) -> Costs:
    """The simulator's costs, from all calibrations; ranks that a program folds are averaged."""
    table, setup = program.table, program.setup
    units = table.states.units
    ranks = setup.ranks
    of_rank = [[c for c in found if c.program_rank == rank] for rank in range(ranks)]
    place = [
        int(g) - int(np.flatnonzero(units.rank == units.rank[g])[0]) for g in range(len(units.rank))
    ]

    def column(read: Callable[[UnitTimes], float]) -> Floats:
        return np.array(
            [
                np.mean([read(c.units[place[g]]) for c in of_rank[int(units.rank[g])]])
                for g in range(len(units.rank))
            ],
            dtype=np.float64,
        )

    def link_mean(rank: int, read: Callable[[Calibration], LinkTimes | None]) -> LinkTimes:
        rows = [link for c in of_rank[rank] if (link := read(c)) is not None]
        if not rows:
            return LinkTimes(0.0, 1e12)
        return LinkTimes(
            float(np.mean([row.fixed_s for row in rows])),
            float(np.mean([row.rate_bytes_per_s for row in rows])),
        )

    rate = np.ones(2 * ranks)
    for rank in range(ranks):
        rates = [
            link.rate_bytes_per_s
            for c in of_rank[rank]
            for link in (c.message, c.message_back, c.collective)
            if link is not None
        ]
        rate[2 * rank] = rate[2 * rank + 1] = max(rates, default=1e12)
    out, into = 2 * units.rank, 2 * units.rank + 1

    def over(volume: Floats, fixed: Callable[[int], float], peer: Any) -> Work:
        fixed_s = np.array([fixed(int(rank)) for rank in units.rank])
        return Work(fixed_s, volume, np.zeros(len(volume)), out.copy(), peer)

    stage_rank = _stage_ranks(program)
    stage = units.stage_in_replica
    base = np.array(setup.first_rank)[units.replica]
    boundary = np.array(
        [
            setup.replicas[int(units.replica[g])].stages[int(stage[g])].output_bytes
            for g in range(len(stage))
        ],
        dtype=np.float64,
    )
    inputs = np.array(
        [
            setup.replicas[int(units.replica[g])].stages[int(stage[g])].units[0].input_bytes
            for g in range(len(stage))
        ],
        dtype=np.float64,
    )
    following = (
        2
        * (
            base
            + np.array(
                [stage_rank(int(r), int(s) + 1) for r, s in zip(units.replica, stage, strict=True)]
            )
        )
        + 1
    )
    previous = (
        2
        * (
            base
            + np.array(
                [stage_rank(int(r), int(s) - 1) for r, s in zip(units.replica, stage, strict=True)]
            )
        )
        + 1
    )
    data = setup.data
    part = column(lambda t: t.elements * element_bytes * (data - 1) / data)
    collective = {rank: link_mean(rank, lambda c: c.collective) for rank in range(ranks)}
    reduced = part * (1 if setup.sharding else 2)
    zero = np.zeros(len(units.rank))

    def ring(volume: Floats) -> Work:
        if data == 1:
            return fixed_work(zero)
        return over(volume, lambda rank: collective[rank].fixed_s, into.copy())

    exchange_s = float(np.mean([c.exchange_s for c in found]))
    work: dict[Kind, Work] = {kind: fixed_work(zero) for kind in BARRIERS}
    work |= {
        Kind.F: fixed_work(column(lambda t: t.forward_s)),
        Kind.R: fixed_work(column(lambda t: t.recovery_s)),
        Kind.B: fixed_work(column(lambda t: t.backward_s)),
        Kind.I: fixed_work(column(lambda t: t.input_gradient_s)),
        Kind.W: fixed_work(column(lambda t: t.weight_gradient_s)),
        Kind.UpdateShard: fixed_work(column(lambda t: t.update_s)),
        Kind.SEND_F: over(boundary, lambda r: link_mean(r, lambda c: c.message).fixed_s, following),
        Kind.SEND_B: over(
            inputs, lambda r: link_mean(r, lambda c: c.message_back).fixed_s, previous
        ),
        Kind.RECV_F: fixed_work(zero),
        Kind.RECV_B: fixed_work(zero),
        Kind.GradSync: ring(reduced),
        Kind.PrefetchW: ring(part),
        Kind.Gather_F: ring(part),
        Kind.Gather_B: ring(part),
        Kind.TieSync: tie_work(
            units,
            column(lambda t: t.elements * element_bytes),
            column(lambda t: t.update_s) * (data if setup.sharding else 1),
            lambda r: link_mean(r, lambda c: c.message or c.message_back).fixed_s,
        ),
        Kind.ClipNorm: fixed_work(zero + 2 * exchange_s),
        Kind.Save: fixed_work(zero),
    }
    return Costs(work, rate)


def _stage_ranks(program: Program) -> Callable[[int, int], int]:
    """(replica, stage) -> its rank in the replica; 0 for a stage that does not exist."""
    replicas = program.setup.replicas

    def find(replica: int, stage: int) -> int:
        stages = replicas[replica].stages
        return stages[stage].rank if 0 <= stage < len(stages) else 0

    return find
