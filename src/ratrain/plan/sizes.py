"""Stages and units of a layout, with the bytes of their states on one rank.

Mixed precision: 2-byte weights and gradients, 12 bytes of master weight and moments a
parameter (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1), divided over a tensor group.
"""

from __future__ import annotations

from itertools import accumulate

from ratrain.cost.activations import checkpoint_bytes, layer_activation_bytes, logits_bytes
from ratrain.cost.balance import balanced_layers
from ratrain.cost.blocks import Block, blocks
from ratrain.describe.job import JobSpec, LayoutSpec, layers_per_stage
from ratrain.program.setup import Stage, Unit

WEIGHT_BYTES = 2
GRADIENT_BYTES = 2
OPTIMIZER_BYTES = 12


def layers_of_stages(job: JobSpec, layout: LayoutSpec) -> tuple[int, ...]:
    """How many layers each stage holds."""
    if layout.layers == "balanced":
        return balanced_layers(job.model.spec, layout.stages, job.model.sequence_length)
    return layers_per_stage(layout, job.model.spec)


def blocks_of_stages(job: JobSpec, layout: LayoutSpec) -> tuple[tuple[Block, ...], ...]:
    """The blocks of each stage: the embedding comes first, the head last."""
    parts = blocks(job.model.spec)
    ends = list(accumulate(layers_of_stages(job, layout)))
    stages = [
        list(parts[1 + begin : 1 + end]) for begin, end in zip([0, *ends], ends, strict=False)
    ]
    stages[0].insert(0, parts[0])
    stages[-1].append(parts[-1])
    return tuple(tuple(stage) for stage in stages)


def stages_of(job: JobSpec, layout: LayoutSpec) -> tuple[Stage, ...]:
    """The stages of one replica, one unit a block."""
    boundary = checkpoint_bytes(job.model.spec, job.model.sequence_length, job.batch.micro_batch)
    parts = blocks_of_stages(job, layout)
    return tuple(
        Stage(
            rank=number % layout.pipeline,
            units=tuple(_unit(job, layout, block, boundary) for block in stage),
            output_bytes=boundary if number < len(parts) - 1 else 0,
        )
        for number, stage in enumerate(parts)
    )


def _unit(job: JobSpec, layout: LayoutSpec, block: Block, boundary: int) -> Unit:
    """A block as a unit. Its input is its checkpoint, so `saved` is counted without it."""
    params = -(-block.params // layout.tensor)
    is_layer = block.kind == "layer"
    return Unit(
        name={"embedding": "e", "head": "h"}.get(block.kind, str(block.index)),
        view_bytes=WEIGHT_BYTES * params,
        gradient_bytes=GRADIENT_BYTES * params,
        optimizer_bytes=OPTIMIZER_BYTES * params,
        input_bytes=0 if block.kind == "embedding" else boundary,
        saved_bytes=_saved_bytes(job, layout, block, boundary),
        recoverable=is_layer,
        head=block.kind == "head",
    )


def _saved_bytes(job: JobSpec, layout: LayoutSpec, block: Block, boundary: int) -> int:
    model, sequence, size = job.model.spec, job.model.sequence_length, job.batch.micro_batch
    if block.kind == "layer":
        return layer_activation_bytes(model, sequence, size, tensor=layout.tensor) - boundary
    if block.kind == "head":
        return -(-logits_bytes(model, sequence, size) // layout.tensor)
    return 0


def parameter_balanced_layers(job: JobSpec, layout: LayoutSpec) -> tuple[int, ...]:
    """Layers per stage such that the largest stage has as few parameters as possible.

    Embedding and head count where they stand. Where stages could do with fewer layers, the
    later ones get them: earlier stages lie idle longer in any case.
    """
    parts = blocks(job.model.spec)
    stages, layers, one = layout.pipeline, job.model.spec.layers, parts[1].params
    fixed = [0] * stages
    fixed[0] += parts[0].params
    fixed[-1] += parts[-1].params
    caps = sorted({f + one * n for f in set(fixed) for n in range(layers + 1)} | set(fixed))
    cap = next(c for c in caps if c >= max(fixed) and _held(c, fixed, one) >= layers)
    counts = [(cap - f) // one for f in fixed]
    while sum(counts) > layers:
        load = [f + n * one for f, n in zip(fixed, counts, strict=True)]
        fullest = max(load[s] for s in range(stages) if counts[s])
        counts[max(s for s in range(stages) if counts[s] and load[s] == fullest)] -= 1
    return tuple(counts)


def _held(cap: int, fixed: list[int], one: int) -> int:
    return sum((cap - f) // one for f in fixed)
