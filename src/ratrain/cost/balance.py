"""Layers to stages so that the slowest stage is as fast as it can be."""

from __future__ import annotations

import heapq

from ratrain.cost.blocks import Block, blocks
from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError


def balanced_layers(
    model: ModelSpec, stages: int, sequence: int, *, recovery: bool = False
) -> tuple[int, ...]:
    """Layers of each stage, at least one each, with the least FLOPs on the busiest stage.

    The embedding is on the first stage and the head on the last. `recovery` counts one more
    forward for each layer outside the last stage. Layers are alike, so giving each next layer to
    the stage that will be least loaded is exact; a tie goes to the later stage, which
    holds fewer micro-batches in flight.
    """
    if not 1 <= stages <= model.layers:
        raise SpecError(
            f"{stages} stages for {model.layers} layers",
            place="layout",
            fix=f"use 1 to {model.layers} stages",
        )
    embedding, layer, *_, head = blocks(model)
    plain = _flops(layer, sequence)
    each = [plain] * stages
    if recovery:
        again = layer.forward_flops(sequence, sequence).total
        each = [plain + again] * (stages - 1) + [plain]
    load = [0.0] * stages
    load[0] += _flops(embedding, sequence)
    load[-1] += _flops(head, sequence)
    count = [1] * stages
    heap = [(load[s] + 2 * each[s], -s) for s in range(stages)]
    heapq.heapify(heap)
    for _ in range(model.layers - stages):
        after, late = heap[0]
        count[-late] += 1
        heapq.heapreplace(heap, (after + each[-late], late))
    return tuple(count)


def _flops(block: Block, sequence: int) -> float:
    """Forward and backward FLOPs of the block over one sequence."""
    return 3 * block.forward_flops(sequence, sequence).total
