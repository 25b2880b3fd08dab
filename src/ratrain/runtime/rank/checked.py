"""A rank of `ratrain check`: its units are compared too, and what was found goes to the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ratrain.check.call import copied_to_host
from ratrain.check.device import Checked
from ratrain.check.rows import FOLDER, Where
from ratrain.check.units import INPUT_GRADIENT, OUTPUT, Given, compare_unit
from ratrain.devices import Device
from ratrain.models.functions.rows import spread
from ratrain.models.graphs import Graph
from ratrain.models.units import MicroBatch
from ratrain.program.kind import Kind
from ratrain.readers.writing import write_whole
from ratrain.runtime.step.ops import INPUTS, OUTPUT_GRADIENTS, RankOps
from ratrain.runtime.step.schedule import LocalOp
from ratrain.runtime.step.unit_state import UnitState

if TYPE_CHECKING:
    from ratrain.runtime.rank.trainer import RankRun


class RankCheck:
    """What one rank compares. `folder`: the run's."""

    def __init__(self, device: Device, folder: Path) -> None:
        assert isinstance(device, Checked)
        self._device, self._folder = device, folder / FOLDER
        self._folder.mkdir(exist_ok=True)
        device.record.keep_in(self._folder / f"rank-{device.rank}")

    def begin(self, run: RankRun) -> None:
        """From now on ops are called by their names, and units are compared."""
        schedule, rank = run.schedule, self._device.rank
        joined = {stage: member.joined for stage, member in schedule.held}

        def where(op: Any, step: int) -> Where:
            unit = schedule.units[op.unit].unit.name if op.unit >= 0 else ""
            many = joined.get(op.stage, 1)
            return Where(step + 1, op.kind.name, unit, op.micro_batch, rank, many)

        self._device.where = where
        assert isinstance(run.ops, CheckedOps)
        run.ops.compare_on(self._device)

    def write(self) -> None:
        """Leaves what was found in the run's folder."""
        path = self._folder / f"rank-{self._device.rank}.json"
        write_whole(path, json.dumps(self._device.record.body()))


class CheckedOps(RankOps):
    """All ops of a rank whose units are compared with the same units in fp64: outputs, gradients of
    inputs, and of weights where they go to one place."""

    device: Checked
    _given: dict[tuple[int, int], Tensor]

    def compare_on(self, device: Checked) -> None:
        """Which device they run on."""
        self.device, self._given = device, {}

    def _run(
        self, unit: UnitState, op: LocalOp, step: int, *, keep: bool
    ) -> tuple[Tensor, Graph | None]:
        given = self._held.read(op, *INPUTS)
        x = self._no_input() if given is None else spread(given.detach(), self._group)
        with _disable_current_modes():
            self._given[op.unit, op.micro_batch] = copied_to_host(x)
        output, graph = super()._run(unit, op, step, keep=keep)
        if op.kind is Kind.F:
            with _disable_current_modes():
                self._compare(unit, op, step, None, {OUTPUT: copied_to_host(output)}, {})
        return output, graph

    def _through_graph(self, op: LocalOp, step: int) -> Tensor | None:
        unit = self.unit(op)
        if unit.local.last:
            seed = torch.full((), self._loss_weight(step))
        else:
            seed = spread(self._held.read(op, *OUTPUT_GRADIENTS), self._group)
        place = unit.weights.whole_gradient
        with _disable_current_modes():
            seed = copied_to_host(seed)
            before = None if place is None else copied_to_host(place)
        gradient = super()._through_graph(op, step)
        with _disable_current_modes():
            made: dict[str, Tensor] = {}
            if gradient is not None and gradient.numel():
                made[INPUT_GRADIENT] = copied_to_host(gradient)
            sums: dict[str, Tensor] = {}
            if before is not None and place is not None:
                after = copied_to_host(place).double()
                for parameter in unit.weights.layout.parameters:
                    here = slice(parameter.offset, parameter.end)
                    made[parameter.name] = after[here] - before[here].double()
                    if before[here].any():
                        sums[parameter.name] = after[here]
            self._compare(unit, op, step, seed, made, sums)
        return gradient

    def _compare(
        self,
        unit: UnitState,
        op: LocalOp,
        step: int,
        seed: Tensor | None,
        made: dict[str, Tensor],
        sums: dict[str, Tensor],
    ) -> None:
        where = self.device.where(op, step)
        if self._group is not None and self._group.division.degree > 1:
            self.device.record.skip("units of tensor groups")
            return
        batch = self.batches.micro_batch(step, op.micro_batch, self._joined[op.stage])
        view, frozen = unit.weights.flats[0], unit.weights.frozen_as_computed()
        given = Given(
            unit.unit,
            torch.zeros(0) if view is None else copied_to_host(view),
            None if frozen is None else copied_to_host(frozen),
            self._given[op.unit, op.micro_batch],
            MicroBatch(copied_to_host(batch.tokens), copied_to_host(batch.targets)),
            self._states.gradient_dtype,
            seed,
        )
        for name, difference in compare_unit(given, made, sums, self.device.narrow_terms):
            self.device.record.add_unit(unit.name, name, difference, where)
