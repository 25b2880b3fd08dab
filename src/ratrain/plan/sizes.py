"""Stages and units of a layout, with the bytes of their states on one rank."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

from ratrain.cost.activations import (
    checkpoint_bytes,
    layer_activation_bytes,
    logits_bytes,
    stored_scores_bytes,
)
from ratrain.cost.balance import balanced_layers
from ratrain.cost.blocks import ELEMENT_BYTES, Block, blocks
from ratrain.cost.precision import precision_of
from ratrain.cost.scratch import compute_scratch_bytes, lanes_scratch_bytes
from ratrain.describe.job import JobSpec, LayoutSpec, layers_per_stage
from ratrain.describe.model import ModelSpec
from ratrain.program.setup import Stage, Unit


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
    boundary = passed_bytes(job, layout)
    parts = blocks_of_stages(job, layout)
    return tuple(
        Stage(
            rank=number % layout.pipeline,
            units=tuple(unit_of(job, layout, block, boundary) for block in stage),
            output_bytes=boundary if number < len(parts) - 1 else 0,
        )
        for number, stage in enumerate(parts)
    )


def boundary_bytes(job: JobSpec) -> int:
    """The tensor between two units, for one micro-batch: 2 S b h, wider in fp32."""
    model, sequence, size = job.model.spec, job.model.sequence_length, job.batch.micro_batch
    return int(checkpoint_bytes(model, sequence, size) * _wider(job))


def passed_bytes(job: JobSpec, layout: LayoutSpec) -> int:
    """A rank's part of the tensor between two units: all of it without sequence parallelism."""
    whole = boundary_bytes(job)
    return -(-whole // layout.tensor) if layout.sequence_parallel else whole


def _wider(job: JobSpec) -> float:
    """How much wider the job's activations are than the 2-byte elements formulas count."""
    return precision_of(job.schedule.dtype).element_bytes / ELEMENT_BYTES


def unit_of(job: JobSpec, layout: LayoutSpec, block: Block, boundary: int) -> Unit:
    """A block as a unit. Its input is its checkpoint, so `saved` is counted without it."""
    params = _params_of_rank(job, layout, block)
    precision = precision_of(job.schedule.dtype)
    return Unit(
        name={"embedding": "e", "head": "h"}.get(block.kind, str(block.index)),
        view_bytes=precision.weight_bytes * params,
        gradient_bytes=precision.gradient_bytes * params,
        optimizer_bytes=precision.optimizer_bytes * params,
        input_bytes=0 if block.kind == "embedding" else boundary,
        saved_bytes=_saved_bytes(job, layout, block, boundary),
        recoverable=block.kind == "layer",
        head=block.kind == "head",
        scratch_bytes=_scratch_bytes(job, layout, block),
        scores_bytes=_scores_bytes(job, layout) if block.kind == "layer" else 0,
    )


def stores_scores(job: JobSpec) -> bool:
    """Whether attention keeps its scores for backward: where any kind of device of the cluster
    runs it so. This runtime, which trains jobs that have data, never does."""
    kernels = [kind.kernels for kind in job.cluster.spec.device]
    return job.data is None and any(one and one.attention == "stored" for one in kernels)


def _scores_bytes(job: JobSpec, layout: LayoutSpec) -> int:
    """What selective recovery frees in a layer, for one micro-batch."""
    if not stores_scores(job):
        return 0
    model, sequence, size = job.model.spec, job.model.sequence_length, job.batch.micro_batch
    return int(stored_scores_bytes(model, sequence, size, layout.tensor) * _wider(job))


def trains_tied(job: JobSpec) -> bool:
    """Whether the job trains a model whose embedding and head are one matrix. One that is only
    simulated, like the published ones, leaves the sum of their gradients out."""
    return job.data is not None and job.model.spec.tied_embeddings


def _params_of_rank(job: JobSpec, layout: LayoutSpec, block: Block) -> int:
    """Parameters on one rank of a tensor group. Jobs that have data to train on count vectors
    whole: norms are, and what biases that are divided save is next to nothing."""
    whole = 0
    if job.data is not None and layout.tensor > 1:
        whole = sum(tensor.elements for tensor in block.tensors if len(tensor.shape) == 1)
    return whole - (-(block.params - whole) // layout.tensor)


def _scratch_bytes(job: JobSpec, layout: LayoutSpec, block: Block) -> int:
    """Counted for jobs that have data to train on: only those run on this runtime. With sequence
    parallelism, in any job: the tensor that a layer or the head gathers for its products."""
    if job.data is None:
        gathers = layout.sequence_parallel and block.kind != "embedding"
        return boundary_bytes(job) if gathers else 0
    element = precision_of(job.schedule.dtype).element_bytes
    model, length, size = job.model.spec, job.model.sequence_length, job.batch.micro_batch
    compute = compute_scratch_bytes(model, block.kind, length, size, element, layout.tensor)
    apart = trains_tied(job) and layout.pipeline > 1
    return compute + lanes_scratch_bytes(layout.data, layout.tensor, tied=apart)


def _saved_bytes(job: JobSpec, layout: LayoutSpec, block: Block, boundary: int) -> int:
    model, sequence, size = job.model.spec, job.model.sequence_length, job.batch.micro_batch
    if block.kind == "layer":
        kept = layer_activation_bytes(
            model,
            sequence,
            size,
            tensor=layout.tensor,
            sequence_parallel=layout.sequence_parallel,
        )
        return int(kept * _wider(job)) - boundary + _scores_bytes(job, layout)
    if block.kind == "head":
        return -(-logits_bytes(model, sequence, size) // layout.tensor)
    return 0


def parameter_balanced_layers(job: JobSpec, layout: LayoutSpec) -> tuple[int, ...]:
    """Layers per stage such that the largest stage has as few parameters as possible.

    Embedding and head count where they stand. Where stages could do with fewer layers, the
    later ones get them: earlier stages lie idle longer in any case.
    """
    return _parameter_balanced(job.model.spec, layout.pipeline)


@lru_cache(maxsize=256)
def _parameter_balanced(model: ModelSpec, stages: int) -> tuple[int, ...]:
    parts = blocks(model)
    layers, one = model.layers, parts[1].params
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
