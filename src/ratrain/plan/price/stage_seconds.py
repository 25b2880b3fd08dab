"""What one micro-batch takes a stage, forward and backward: one form for the rows of layouts, where
arrays are rows x stages, and for the stages of drafts, where they are rows x ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ratrain.cost.blocks import BlockKind
from ratrain.cost.collectives import reduction_loss
from ratrain.cost.compute import BlockTimes
from ratrain.describe.cluster import Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.layout.sizes import boundary_bytes
from ratrain.plan.layout.times import sums_of_op
from ratrain.plan.price.bill import BACKWARD, FORWARD, SELECTIVE
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import Strategy
from ratrain.program.units import Ints
from ratrain.simulate.costs import Floats


@dataclass(frozen=True)
class UnitSeconds:
    """One sort of unit: compute, and the sums of its tensor group in one direction."""

    forward_s: float
    backward_s: float
    selective_s: float  # backward in selective recovery
    sums_s: float
    sums_driving_s: float


KINDS: tuple[BlockKind, BlockKind, BlockKind] = "embedding", "layer", "head"


def units_seconds(
    job: JobSpec,
    strategy: Strategy,
    layout: LayoutSpec,
    device: DeviceKind,
    link: Link | None,
    times: Sequence[BlockTimes],
) -> tuple[UnitSeconds, UnitSeconds, UnitSeconds]:
    """Of an embedding, a layer and a head on a device; `link`: of its tensor group, None where it
    is alone; `times`: theirs, and a layer's in selective recovery."""
    split = SKELETONS[strategy.skeleton].split_backward
    boundary, selective = boundary_bytes(job.of_kind(device)), times[3]

    def made(kind: BlockKind, time: BlockTimes) -> UnitSeconds:
        sums_s = sums_driving_s = 0.0
        if link and not time.sums_inside:
            sums = sums_of_op(job, kind, boundary, layout, link)
            sums_s = sums.alone_s(link.bandwidth_bytes_per_s)
            sums_driving_s = reduction_loss(device).driven(sums).driving_s
        return UnitSeconds(
            time.forward_s,
            time.backward_s + split * time.split_s,
            selective.backward_s + split * selective.split_s,
            sums_s,
            sums_driving_s,
        )

    embedding, layer, head = (made(*each) for each in zip(KINDS, times[:3], strict=True))
    return embedding, layer, head


def alone_s(units: Sequence[UnitSeconds]) -> tuple[tuple[float, float], ...]:
    """What an embedding, a layer and a head take with their sums, forward and backward."""
    embedding, layer, head = units
    sums_s = [unit.sums_s + unit.sums_driving_s for unit in units]
    return (
        (embedding.forward_s + sums_s[0], embedding.backward_s),
        (layer.forward_s + sums_s[1], layer.backward_s + sums_s[1]),
        (head.forward_s, head.backward_s + sums_s[2]),
    )


class StageSeconds(NamedTuple):
    """One micro-batch of stages. `early_s`: what of backward is recovery ahead of the gradient."""

    forward_s: Floats
    backward_s: Floats
    early_s: Floats


Column = Callable[[int, str], Floats]
"""A field of `UnitSeconds` of an embedding (0), a layer (1) or a head (2), for each stage."""


def stage_seconds(
    job: JobSpec,
    strategy: Strategy,
    column: Column,
    layers: Ints,
    recovery: Ints,
    buffer: Ints,
    ends: tuple[Ints, Ints],
) -> StageSeconds:
    """The `StageSeconds` of so many layers in these recovery modes; `buffer`: of how many at most
    one recovers ahead; `ends`: stages that have an embedding, and that have a head."""
    first, last = ends
    layer_f, layer_b = column(1, "forward_s"), column(1, "backward_s")
    sums, drive = column(1, "sums_s"), column(1, "sums_driving_s")
    forward_s = layers * (layer_f + (sums + drive))
    forward_s = forward_s + first * (
        column(0, "forward_s") + (column(0, "sums_s") + column(0, "sums_driving_s"))
    )
    forward_s = forward_s + last * column(2, "forward_s")
    # A recovered unit's last sum is not made where ops carry that alone: nobody reads it.
    recovered = 0.0 if job.backend.sums_in_compute else 1.0
    plain = layers * (layer_b + sums + drive)
    late = plain + layers * (layer_f + recovered * (sums + drive))
    buffer = np.minimum(buffer, layers)
    early = np.where(recovery == FORWARD, buffer * layer_f, 0.0)
    hidden = (layers - buffer) * np.maximum(layer_f, sums) + buffer * sums
    ahead = early + layers * (layer_b + (1 + recovered) * drive) + hidden
    time_s = np.where(recovery == BACKWARD, late, np.where(recovery == FORWARD, ahead, plain))
    slower_s = column(1, "selective_s") - layer_b
    time_s = time_s + (recovery == SELECTIVE) * layers * slower_s
    time_s = time_s + first * column(0, "backward_s")
    time_s = time_s + last * (
        column(2, "backward_s") + (column(2, "sums_s") + column(2, "sums_driving_s"))
    )
    if strategy.recovers_heads:
        again = (recovery == BACKWARD) | (recovery == FORWARD)
        time_s = time_s + again * last * column(2, "forward_s")
    return StageSeconds(forward_s, time_s, early)
