"""How a rank's steps spread tokens over the experts of its layers: a step's for its report, all of
them for the run's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ratrain.models.expert_load import ExpertLoad
from ratrain.models.units import expert_load
from ratrain.runtime.step.unit_state import UnitState

NAN = float("nan")


class StepLoad(NamedTuple):
    """A step's, over all layers of a rank. A token counts once for each expert that it chose."""

    expert_tokens: float = NAN  # of the experts that are here
    expert_tokens_even: float = NAN  # of them, if all ranks of the tensor group had as many
    expert_tokens_longest: float = NAN  # of the group's rank with the most, layer by layer
    expert_busiest: float = NAN  # a layer's busiest expert over its mean one, where that is largest


class ExpertLoads:
    """Those of the layers that have experts."""

    def __init__(self, units: Iterable[UnitState]) -> None:
        loads = ((unit, expert_load(unit.unit)) for unit in units)
        self._layers = [(unit, load) for unit, load in loads if load is not None]
        self._sums = {
            unit.local.unit.name: ExpertLoad([0] * len(load.tokens)) for unit, load in self._layers
        }
        self._steps = 0
        for _, load in self._layers:
            load.take()  # what was computed to be timed

    def take_step(self) -> StepLoad:
        """What was counted since the step before."""
        own, even, longest, busiest = 0, 0.0, 0, NAN
        for unit, load in self._layers:
            step = load.take()
            self._sums[unit.local.unit.name].add(step)
            every = sum(step.tokens)
            if every:  # else nothing below it is trained
                own += sum(step.tokens[unit.division.of(len(step.tokens))])
                even += every / unit.division.degree
                longest += step.longest
                over_mean = max(step.tokens) * len(step.tokens) / every
                busiest = over_mean if busiest != busiest else max(busiest, over_mean)
        self._steps += 1
        return StepLoad(own, even, longest, busiest) if even else StepLoad()

    def as_json(self) -> dict[str, Any] | None:
        """By layer; None without experts."""
        layers = {
            name: {"tokens": load.tokens, "longest": load.longest}
            for name, load in self._sums.items()
        }
        return {"steps": self._steps, "layers": layers} if layers else None
