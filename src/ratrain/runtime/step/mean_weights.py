"""The mean of weights that replicas or sites train apart, in the place of their own for a while:
the model that a checkpoint of them is read as."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import sqrt

import torch
from torch import Tensor

from ratrain.program.kind import Lane
from ratrain.runtime.step.network.broadcast import summed_columns
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.unit_state import UnitState


@contextmanager
def mean_weights(
    units: list[UnitState],
    network: Network,
    average: Callable[[UnitState, Tensor], None],
    show: Callable[[UnitState], None],
) -> Iterator[float | None]:
    """Gives the drift: how far, as root of the mean square, weights are from their mean, as a part
    of the mean's norm; None where all have the same. `average` makes a tensor the mean; `show` the
    view what weights are. Takes a copy of what the rank updates, where gradients are in a step.
    All ranks call this together, with all lanes at rest."""
    apart = [unit for unit in units if unit.own and unit.trained]
    squares, kept = torch.zeros(2, dtype=torch.float64), list[Tensor]()
    for unit in apart:
        weights = unit.own_master()
        kept.append(weights.clone())
        becomes_mean(unit, network, average, show)
        counted = unit.counts(weights)
        away = torch.linalg.vector_norm(kept[-1][counted] - weights[counted], dtype=torch.float64)
        length = torch.linalg.vector_norm(weights[counted], dtype=torch.float64)
        squares += torch.stack([away, length]).square().cpu()
    totals = network.combine(Lane.UPDATE, squares, summed_columns)
    yield sqrt(float(totals[0] / totals[1])) if float(totals[1]) else None
    for unit, own in zip(apart, kept, strict=True):
        unit.own_master().copy_(own)
        _show(unit, network, show)


def becomes_mean(
    unit: UnitState,
    network: Network,
    average: Callable[[UnitState, Tensor], None],
    show: Callable[[UnitState], None],
) -> None:
    """A unit's weights, and what compute reads of them, become the mean of all replicas' or
    sites'."""
    weights = unit.own_master()
    unit.weigh(weights)
    average(unit, weights)
    _show(unit, network, show)


def _show(unit: UnitState, network: Network, show: Callable[[UnitState], None]) -> None:
    show(unit)
    if unit.view is not None and not unit.has_all and len(unit.holders) > 1:
        unit.gather_view(network, Lane.GATHER, unit.view)
