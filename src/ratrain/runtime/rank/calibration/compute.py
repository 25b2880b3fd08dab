"""The times of a rank's compute ops, which are played as they will run, and of its optimizer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from ratrain.cost.scratch import pieces_on
from ratrain.describe.train import TrainSpec
from ratrain.devices import Device, Memory
from ratrain.models.tensor_group import TensorGroup
from ratrain.models.units import MicroBatch
from ratrain.profile.processor import repeating, with_processors
from ratrain.program.kind import Kind, Lane
from ratrain.runtime.rank.calibration.measured import UnitTimes
from ratrain.runtime.rank.calibration.rehearsal import Passed, Rehearsal
from ratrain.runtime.rank.calibration.timers import launched, recorded
from ratrain.runtime.step.captured import can_be_recorded
from ratrain.runtime.step.exchange.feedback import Residual
from ratrain.runtime.step.exchange.narrowing import narrowed, widen_from_front
from ratrain.runtime.step.optimizer import OwnedPart
from ratrain.runtime.step.outer import OuterStates
from ratrain.runtime.step.schedule import Schedule
from ratrain.runtime.step.states import RankStates
from ratrain.runtime.step.unit_state import UnitState

LEAST_PASSES, LEAST_S = 3, 2.0
"""Passes are repeated until both are reached; the first, with cold caches, does not count."""
LEAST_BESIDE_S = 1.0
"""The same of passes beside updates."""
MOST_PASSES = 32
"""Whose times are kept one by one."""
_IN_CACHES = 1 << 23
"""Elements that take the place of others in a processor's caches, as far as they are 32 MB."""
_PIECES_TIMED = 4
"""The optimizer is timed on as many of the pieces that it takes at once."""


@dataclass(frozen=True)
class ComputeTimes:
    """The times of each of a rank's units; the processors that compute keeps busy; and, where
    updates take processors from it, the seconds that it loses to a second of them."""

    units: tuple[UnitTimes, ...]
    busy: float
    stall_s_per_update_s: float | None


def unit_times(
    schedule: Schedule,
    states: RankStates,
    train: TrainSpec,
    boundary: tuple[int, ...],
    batch: MicroBatch,
    allocator: Memory,
    group: TensorGroup | None,
    device: Device,
) -> ComputeTimes:
    """What compute takes; the ranks of a tensor group go through it together. `boundary`: the shape
    of what a rank has of a tensor between units."""
    timers = [launched(device.finish)]
    if can_be_recorded(train, schedule, device):
        timers.append(recorded(device.finish))
    rehearsal = Rehearsal(schedule, states, boundary, batch, allocator, group, *timers)
    with device.stream(Lane.COMPUTE.word):
        playing = rehearsal.passes()
        next(playing, None)  # with cold caches
        passes, busy = with_processors(lambda: _long_enough(playing, LEAST_S, group))
        stall_s_per_update_s = None
        if passes and _of_first_rank(float(_clashes(device)), group):
            stall_s_per_update_s = _stall_s_per_update_s(
                playing, passes, states, train, group, device
            )
        rehearsal.close()

    def mean(kind: Kind, unit: int) -> float:
        # A mean, not a median: under a quota an op runs through or is cut by a pause, and only
        # the mix of both is the rate.
        took_s = [passed.took_s.get((kind, unit), 0.0) for passed in passes]
        return fmean(took_s) if took_s else 0.0

    def of_unit(index: int, unit: UnitState) -> UnitTimes:
        making_s = rehearsal.making_s[index]
        made_s = fmean(making_s) / max(1, unit.local.micro_batches) if making_s else 0.0
        update_s, update_cpu_s = _update_s(unit, states, train, device)
        return UnitTimes(
            forward_s=mean(Kind.F, index),
            recovery_s=mean(Kind.R, index),
            backward_s=mean(Kind.B, index) + made_s,
            input_gradient_s=mean(Kind.I, index),
            weight_gradient_s=mean(Kind.W, index) + made_s,
            update_s=update_s,
            update_cpu_s=update_cpu_s,
            narrowing_s=_narrowing_s(unit, states, device),
            averaging_s=_averaging_s(unit, states, device),
            elements=unit.padded,
            gathered_elements=unit.gathered_elements,
            scratch_bytes=rehearsal.scratch_bytes[index],
            passes=tuple(_both_ways(passed, index) for passed in passes[:MOST_PASSES]),
        )

    units = tuple(of_unit(index, unit) for index, unit in enumerate(states.units))
    return ComputeTimes(units, busy, stall_s_per_update_s)


def _long_enough(
    playing: Iterator[Passed], least_s: float, group: TensorGroup | None
) -> list[Passed]:
    """As many passes as are needed; none where the rank computes nothing."""
    passes: list[Passed] = []
    began_s = time.perf_counter()
    for passed in playing:
        passes.append(passed)
        lasted_s = _of_first_rank(time.perf_counter() - began_s, group)
        if len(passes) >= LEAST_PASSES and lasted_s >= least_s:
            break
    return passes


def _clashes(device: Device) -> bool:
    """Whether an update's threads and those of compute want the same processors."""
    return device.place.type == "cpu" and torch.get_num_threads() > 1


def _stall_s_per_update_s(
    playing: Iterator[Passed],
    alone: list[Passed],
    states: RankStates,
    train: TrainSpec,
    group: TensorGroup | None,
    device: Device,
) -> float | None:
    """What compute loses to a second of updates beside it, both played. Two teams of threads wait
    for each other's processors at the end of each product, so this is more than both's share."""
    unit = max(states.units, key=lambda each: each.owned_elements if each.trained else -1)
    if not unit.trained:
        _long_enough(playing, LEAST_BESIDE_S, group)  # others of the group wait for it
        return None
    with states.away["optimizer"].present(unit.local.index):
        update, _ = _piece_of(unit, train, device)
    update_s = _mean_s(update)
    with repeating(update) as repeated:
        began_s, before = time.perf_counter(), repeated()
        beside = _long_enough(playing, LEAST_BESIDE_S, group)
        took_s, updated = time.perf_counter() - began_s, repeated() - before
    alone_s, beside_s = (fmean(sum(p.took_s.values()) for p in each) for each in (alone, beside))
    return max(0.0, 1.0 - alone_s / beside_s) * took_s / (max(1, updated) * update_s)


def _mean_s(work: Callable[[], None]) -> float:
    """Seconds of work that is done several times in a row, without the first."""
    work()
    began_s = time.perf_counter()
    for _ in range(LEAST_PASSES):
        work()
    return (time.perf_counter() - began_s) / LEAST_PASSES


def _both_ways(passed: Passed, index: int) -> tuple[float, float]:
    """Seconds of a unit forward, and back."""
    back = (passed.took_s.get((kind, index), 0.0) for kind in (Kind.B, Kind.I, Kind.W))
    return passed.took_s[Kind.F, index], sum(back)


def _of_first_rank(value: float, group: TensorGroup | None) -> float:
    """All ranks of a tensor group must decide alike."""
    if group is None:
        return value
    return float(group.gather(torch.tensor([value], dtype=torch.float64))[0])


def _narrowing_s(unit: UnitState, states: RankStates, device: Device) -> float:
    """Rounding a piece of a gradient for the network, with its residual where errors are fed back;
    linearly extrapolated to the whole."""
    if states.gradient_dtype == states.wire.gradients or not unit.trained:
        return 0.0
    count = min(_PIECES_TIMED * pieces_on(device.place.type).update, unit.padded)
    wire, residual = states.wire.gradients, None
    if unit.residual is not None:
        residual = Residual(torch.zeros(count, device=states.device))

    def narrow(piece: Tensor) -> None:
        if residual is None:
            narrowed(piece, wire)
        else:
            residual.narrowed(piece, wire, first=True, scale=1.0)

    return _piece_s(narrow, count, states.gradient_dtype, device) * unit.padded / count


def _averaging_s(unit: UnitState, states: RankStates, device: Device) -> float:
    """The same of what a unit has learnt, sent for its average and read again."""
    if unit.outer is None or unit.outer.residual is None:
        return 0.0
    count = min(_PIECES_TIMED * pieces_on(device.place.type).update, unit.padded)
    kept, integers = torch.zeros(count, device=states.device), states.wire.averages

    def timed_s(work: Callable[[Tensor], None]) -> float:
        return _piece_s(work, count, torch.float32, device)

    if integers is None:
        outer = OuterStates(kept, kept, Residual(kept))
        each_s = timed_s(lambda piece: widen_from_front(piece, outer.sent(piece)))
        return each_s * unit.padded / count
    coded = torch.zeros(integers.size_bytes(count), dtype=torch.uint8, device=states.device)
    send_s = timed_s(lambda piece: integers.send(kept.add_(piece), coded))
    read_s = timed_s(lambda piece: integers.read(coded, piece, 0))
    own = 1 / len(unit.holders if unit.across is None else unit.across.sites)
    elements = unit.padded if unit.across is None else unit.owned_elements
    return ((1 + own) * send_s + 2 * read_s) * elements / count


def _piece_s(
    work: Callable[[Tensor], None], count: int, dtype: torch.dtype, device: Device
) -> float:
    """What work on a piece of so many elements takes."""
    took_s: list[float] = []
    for _ in range(LEAST_PASSES + 1):
        piece = torch.zeros(count, dtype=dtype, device=device.place)
        began_s = time.perf_counter()
        work(piece)
        device.finish()
        took_s.append(time.perf_counter() - began_s)
    return fmean(took_s[1:])


def _update_s(
    unit: UnitState, states: RankStates, train: TrainSpec, device: Device
) -> tuple[float, float]:
    """A unit's update, wherever its optimizer states are, and what it takes of processors."""
    with states.away["optimizer"].present(unit.local.index):
        return _update_here_s(unit, train, device)


def _update_here_s(unit: UnitState, train: TrainSpec, device: Device) -> tuple[float, float]:
    """The optimizer on copies of a piece of the largest part, linearly extrapolated to all; one
    that takes whole matrices, on copies of the largest one. A processor's caches have nothing of
    them, as in a step."""
    if not unit.trained:
        return 0.0, 0.0
    update, count = _piece_of(unit, train, device)
    others = torch.ones(_IN_CACHES if device.place.type == "cpu" else 0)
    took_s: list[float] = []
    worked_s: list[float] = []
    for _ in range(LEAST_PASSES + 1):
        others.mul_(1.0)
        began_s, worked_before_s = time.perf_counter(), time.process_time()
        update()
        device.finish()
        took_s.append(time.perf_counter() - began_s)
        worked_s.append(time.process_time() - worked_before_s)
    whole = sum(part.end - part.begin for part in unit.parts) / count
    return fmean(took_s[1:]) * whole, fmean(worked_s[1:]) * whole


def _piece_of(unit: UnitState, train: TrainSpec, device: Device) -> tuple[Callable[[], None], int]:
    """The update of copies of a piece of a unit's largest part, and of how many elements it is."""
    part = max(unit.parts, key=lambda part: part.end - part.begin)
    run = slice(0, min(_PIECES_TIMED * pieces_on(device.place.type).update, part.end - part.begin))
    matrices = [max(part.parameters, key=lambda each: each.elements)] if train.rule.whole else []
    if matrices:
        run = matrices[0].run
    count = run.stop - run.start
    inside = [replace(matrix, offset=0) for matrix in matrices]
    weights = part.weights[run].clone()
    states = tuple(
        state.hold(held[run].values().clone(), inside)
        for state, held in zip(train.rule.states, part.states, strict=True)
    )
    piece = OwnedPart(0, count, count, weights, states, inside)
    gradient = torch.zeros(count, dtype=torch.float32, device=part.weights.device)
    return lambda: piece.update(gradient, train, 0, 0, 1.0), count
