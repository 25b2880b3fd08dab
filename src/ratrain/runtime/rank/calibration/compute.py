"""The times of a rank's compute ops, which are played as they will run, and of its optimizer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from ratrain.cost.scratch import pieces_on
from ratrain.describe.train import TrainSpec
from ratrain.devices import Device, Memory
from ratrain.models.tensor_group import TensorGroup
from ratrain.models.units import MicroBatch
from ratrain.profile.processor import with_processors
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
MOST_PASSES = 32
"""Whose times are kept one by one."""
_IN_CACHES = 1 << 23
"""Elements that take the place of others in a processor's caches, as far as they are 32 MB."""
_PIECES_TIMED = 4
"""The optimizer is timed on as many of the pieces that it takes at once."""


def unit_times(
    schedule: Schedule,
    states: RankStates,
    train: TrainSpec,
    boundary: tuple[int, ...],
    batch: MicroBatch,
    allocator: Memory,
    group: TensorGroup | None,
    device: Device,
) -> tuple[tuple[UnitTimes, ...], float]:
    """The times of each unit of the rank, and the processors that compute keeps busy; the ranks of
    a tensor group go through them together. `boundary`: the shape of what a rank has of a tensor
    between units."""
    timers = [launched(device.finish)]
    if can_be_recorded(train, schedule, device):
        timers.append(recorded(device.finish))
    rehearsal = Rehearsal(schedule, states, boundary, batch, allocator, group, *timers)
    with device.stream(Lane.COMPUTE.word):
        passes, busy = with_processors(lambda: _long_enough(rehearsal, group))
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

    return tuple(of_unit(index, unit) for index, unit in enumerate(states.units)), busy


def _long_enough(rehearsal: Rehearsal, group: TensorGroup | None) -> list[Passed]:
    """As many passes as are needed, without the first."""
    passes: list[Passed] = []
    began_s: float | None = None
    for passed in rehearsal.passes():
        if began_s is None:
            began_s = time.perf_counter()
            continue
        passes.append(passed)
        lasted_s = _of_first_rank(time.perf_counter() - began_s, group)
        if len(passes) >= LEAST_PASSES and lasted_s >= LEAST_S:
            break
    return passes


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
    others = torch.ones(_IN_CACHES if device.place.type == "cpu" else 0)
    took_s: list[float] = []
    worked_s: list[float] = []
    for _ in range(LEAST_PASSES + 1):
        others.mul_(1.0)
        began_s, worked_before_s = time.perf_counter(), time.process_time()
        piece.update(gradient, train, 0, 0, 1.0)
        device.finish()
        took_s.append(time.perf_counter() - began_s)
        worked_s.append(time.process_time() - worked_before_s)
    whole = sum(part.end - part.begin for part in unit.parts) / count
    return fmean(took_s[1:]) * whole, fmean(worked_s[1:]) * whole
