"""The optimizer on the part of a unit that a rank owns, and what a step's update depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import cos, pi
from typing import NamedTuple

from torch import Tensor

from ratrain.cost.scratch import pieces_on
from ratrain.describe.optimizers import Held, Matrix, Step, matrices_of_stack
from ratrain.describe.train import TrainSpec
from ratrain.models.parameters import ALIGN, UnitParameters


class Piece(NamedTuple):
    """Elements of a part that are updated at once; a whole parameter has its shape and name."""

    run: slice
    decays: bool
    shape: tuple[int, ...] = (-1,)
    name: str = ""


@dataclass
class OwnedPart:
    """The part [begin, end) of a unit's flat buffer that this rank updates.

    `weights` are the fp32 master: a buffer of its own in mixed precision, a window on the view
    (or on its shard) in fp32, where the weights are their own master. `states`: the optimizer's.
    """

    begin: int
    end: int
    decay_end: int  # of the whole unit
    weights: Tensor
    states: tuple[Held, ...]
    parameters: Sequence[Matrix] = ()  # those of the part, for optimizers that take whole ones
    beside: Mapping[str, Held] = field(default_factory=dict[str, Held])  # further entries (`Saved`)

    def update(
        self, gradient: Tensor, spec: TrainSpec, step: int, updates: int, scale: float
    ) -> None:
        """One step of the optimizer; `gradient` is multiplied by `scale` first. `step` counts from
        0 and says the learning rate; `updates` were done before this one."""
        optimizer, rate = spec.rule, learning_rate(spec, step)
        for run, decays, shape, name in self._wholes() if optimizer.whole else self._pieces():
            part = gradient[run].float()  # fp32 gradients are not copied
            if scale != 1.0:
                part = part * scale
            optimizer.update(
                self.weights[run].view(shape),
                part.view(shape),
                [state[run] for state in self.states],
                spec.keys,
                Step(rate, updates, spec.weight_decay if decays else 0.0, name),
            )

    def _wholes(self) -> Iterator[Piece]:
        """Parameter by parameter: matrices decay."""
        for matrix in self.parameters:
            yield Piece(matrix.run, len(matrix.shape) > 1, matrix.shape, matrix.name)

    def _pieces(self) -> Iterator[Piece]:
        """Windows of the part, each wholly inside or outside the decaying elements."""
        elements = pieces_on(self.weights.device.type).update
        middle = min(max(self.decay_end, self.begin), self.end)
        for begin, end, decays in ((self.begin, middle, True), (middle, self.end, False)):
            for at in range(begin, end, elements):
                yield Piece(slice(at - self.begin, min(at + elements, end) - self.begin), decays)


def parameters_in(layout: UnitParameters, run: slice) -> tuple[Matrix, ...]:
    """The parameters of a unit that lie whole in a run of its buffer."""
    return tuple(
        matrix
        for parameter in layout.parameters
        for matrix in matrices_of_stack(
            parameter.name, parameter.shape, parameter.offset - run.start
        )
        if run.start <= parameter.offset and parameter.end <= run.stop
    )


def learning_rate(spec: TrainSpec, step: int) -> float:
    """The rate of a step (from 0): linear warm-up, then as the schedule says."""
    if step < spec.warmup_steps:
        return spec.learning_rate * (step + 1) / spec.warmup_steps
    if spec.rate_schedule == "constant":
        return spec.learning_rate
    first = spec.warmup_steps
    if spec.rate_schedule == "wsd":  # warm up, stay, decay: Hu et al. 2024, arXiv 2404.06395
        first = max(first, spec.steps - 1 - round(spec.decay_part * spec.steps))
    done = min(max(0.0, (step - first) / max(1, spec.steps - 1 - first)), 1.0)
    left = (1 + cos(pi * done)) / 2 if spec.rate_schedule == "cosine" else 1 - done
    return spec.learning_rate * (spec.final_rate + (1 - spec.final_rate) * left)


@dataclass
class LossScale:
    """The dynamic loss scale of fp16: halved when a gradient overflows, doubled after
    `growth_steps` steps without (Micikevicius et al. 2018, arXiv 1710.03740)."""

    scale: float
    good_steps: int = 0
    growth_steps: int = 2000

    def as_state(self) -> dict[str, float]:
        """What a checkpoint holds of it."""
        return {"loss_scale": self.scale, "good_steps": self.good_steps}

    def settle(self, overflowed: bool) -> None:
        if overflowed:
            self.scale, self.good_steps = max(self.scale / 2, 1.0), 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_steps:
            self.scale, self.good_steps = self.scale * 2, 0


def owned_range(padded: int, owners: int, owner: int) -> tuple[int, int]:
    """The part of a flat buffer of `padded` elements that one of its owners has."""
    assert padded % (owners * ALIGN) == 0
    part = padded // owners
    return owner * part, (owner + 1) * part
