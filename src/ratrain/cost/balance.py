"""Layers to stages so that the fullest stage is as empty as it can be: of FLOPs, time, or bytes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from operator import mul

from ratrain.cost.blocks import Block, blocks
from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError


def spread(
    layers: int, load: Sequence[float], each: Sequence[float], *, least: int = 1, late: bool = True
) -> tuple[int, ...]:
    """Layers of each stage, `least` of them at least, so that the fullest is as empty as can be.
    `load`: of each stage without layers; `each`: of one of its layers.

    A stage's layers are alike, so giving each next one to the stage that will be least loaded is
    exact. A tie goes to the later stage, which holds fewer micro-batches in flight, or to the
    earlier one."""
    # Level water: no stage that could be cut up at will would have less load than this.
    rates = [1 / one for one in each]
    level = (layers + sum(map(mul, load, rates))) / sum(rates)
    count = [
        max(least, int(0.999999 * (level - fixed) / one))
        for fixed, one in zip(load, each, strict=True)
    ]
    if sum(count) > layers:
        count = [least] * len(count)
    way = -1 if late else 1
    heap = [(load[s] + (count[s] + 1) * each[s], way * s) for s in range(len(count))]
    heapq.heapify(heap)
    for _ in range(layers - sum(count)):
        stage = abs(heap[0][1])
        count[stage] += 1
        heapq.heapreplace(heap, (load[stage] + (count[stage] + 1) * each[stage], way * stage))
    return tuple(count)


def balanced_layers(model: ModelSpec, stages: int, sequence: int) -> tuple[int, ...]:
    """Layers of each stage, at least one each, with the least FLOPs on the busiest stage. The
    embedding is on the first stage and the head on the last."""
    if not 1 <= stages <= model.layers:
        raise SpecError(
            f"{stages} stages for {model.layers} layers",
            place="layout",
            fix=f"use 1 to {model.layers} stages",
        )
    embedding, layer, *_, head = blocks(model)
    load = [0.0] * stages
    load[0] += _flops(embedding, sequence)
    load[-1] += _flops(head, sequence)
    return spread(model.layers, load, [_flops(layer, sequence)] * stages)


def _flops(block: Block, sequence: int) -> float:
    """Forward and backward FLOPs of the block over one sequence."""
    return 3 * block.forward_flops(sequence, sequence).total
