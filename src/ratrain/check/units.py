"""A unit on a device against the same unit in fp64, from the same inputs: errors of units before it
do not add up. How far it may be is what `scatter` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from ratrain.check.compare import MOST, Difference, cosine
from ratrain.check.scatter import scatter
from ratrain.models.graphs import gradient_of_leaf, graph_of
from ratrain.models.units import MicroBatch, Unit
from ratrain.models.weights import Weights

DRAWS = 3
"""How often a unit is computed with operators that err by chance."""
ALLOWED = 4.0
"""How many times the largest distance of those draws the device's may be. Draws err as much as
operators may, and devices less; so a right unit stays far below even 1."""
OUTPUT, INPUT_GRADIENT = "output", "input gradient"


@dataclass(frozen=True)
class Given:
    """What a unit is given, in host memory and in the dtypes of the device. `seed`: the gradient of
    its output; None: forward alone."""

    unit: Unit
    view: Tensor
    frozen: Tensor | None
    x: Tensor
    batch: MicroBatch
    gradient_dtype: torch.dtype
    seed: Tensor | None = None

    def exactly(self) -> Given:
        """The same in fp64."""
        frozen = None if self.frozen is None else self.frozen.double()
        seed = None if self.seed is None else self.seed.double()
        wide = torch.float64
        return Given(self.unit, self.view.double(), frozen, self.x.double(), self.batch, wide, seed)

    def computed(self) -> dict[str, Tensor]:
        """Its output, or of a backward its input's gradient and those of its parameters, by
        name."""
        weights, layout = Weights(self.unit.layout), self.unit.layout
        weights.attach_frozen(self.frozen)
        weights.attach_view(self.view)
        leaf = self.x.clone()
        if self.seed is None:
            with torch.no_grad():
                return {OUTPUT: self.unit.forward(weights, leaf, self.batch)}
        flat = torch.zeros(len(self.view), dtype=self.gradient_dtype)
        weights.attach_gradient(flat)
        leaf.requires_grad_()
        with torch.enable_grad():
            graph = graph_of(self.unit.forward(weights, leaf, self.batch), leaf)
        of_leaf = gradient_of_leaf(graph, self.seed)
        made = {p.name: flat[p.offset : p.end] for p in layout.parameters if p.trained}
        if of_leaf is not None and of_leaf.numel():
            made[INPUT_GRADIENT] = of_leaf
        return made


def compare_unit(
    given: Given,
    made: dict[str, Tensor],
    sums: Mapping[str, Tensor] = MappingProxyType({}),
    narrow_terms: int = 0,
) -> Iterator[tuple[str, Difference]]:
    """What the device made of it, by name, against fp64. Gradients that are not in `made` went
    elsewhere. `sums`: of gradients that were added to others, the sums, with which they were
    rounded."""
    exact = given.exactly().computed()
    draws = scatter(given.computed, DRAWS, narrow_terms)
    for name, result in made.items():
        wanted = exact[name]
        allowed = max(_distance(draw[name], wanted) for draw in draws)
        if name in sums:
            allowed += torch.finfo(given.gradient_dtype).eps * float(sums[name].norm())
        allowed *= ALLOWED
        off = _distance(result, wanted)
        times = 0.0 if off == 0 else min(off / allowed, MOST) if allowed else MOST
        largest = float((result.double().flatten() - wanted.flatten()).abs().max())
        near = cosine(result.double(), wanted)
        yield name, Difference(times, min(_finite(largest), MOST), near)


def _distance(made: Tensor, exact: Tensor) -> float:
    """The Euclidean distance."""
    return _finite(float((made.double().flatten() - exact.flatten()).norm()))


def _finite(value: float) -> float:
    return value if value < MOST else MOST  # and NaN is far
