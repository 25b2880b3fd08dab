"""Stages and units of a layout, with the bytes of their states on one rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

from ratrain.cost.activations import (
    checkpoint_bytes,
    layer_activation_bytes,
    logits_bytes,
    probabilities_bytes,
    stored_scores_bytes,
)
from ratrain.cost.balance import balanced_layers, spread
from ratrain.cost.blocks import ELEMENT_BYTES, Block, Tensor, blocks
from ratrain.cost.precision import FP32, dtype_words, precision_of, travel_words, wire_bytes
from ratrain.cost.scratch import (
    buckets_scratch_bytes,
    compute_scratch_bytes,
    dropped_scratch_bytes,
    kernels_scratch_bytes,
    lanes_scratch_bytes,
    masks_bytes,
    stored_scratch_bytes,
    unpacked_bytes,
)
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec, ScheduleSpec, layers_per_stage
from ratrain.describe.model import ModelSpec
from ratrain.describe.optimizers import USUAL_OPTIMIZER, Matrix, matrices_of_stack
from ratrain.describe.own import own_cost
from ratrain.describe.units import counted, format_bytes
from ratrain.program.replicas import Stage, Unit, stage
from ratrain.program.tiers import TIER_WORDS


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
    sized: dict[object, Unit] = {}  # layers differ in their names, and in what of them is trained
    for block in (block for blocks_of_stage in parts for block in blocks_of_stage):
        if block.sort not in sized:
            sized[block.sort] = unit_of(job, layout, block, boundary)
    return tuple(
        stage(
            rank=number % layout.pipeline,
            units=tuple(
                replace(sized[block.sort], name=_name_of(block)) for block in blocks_of_stage
            ),
            output_bytes=boundary if number < len(parts) - 1 else 0,
            tensor=layout.tensor,
        )
        for number, blocks_of_stage in enumerate(parts)
    )


def boundary_bytes(job: JobSpec) -> int:
    """The tensor between two units, for one micro-batch: 2 S b h, wider in fp32."""
    model, sequence, size = job.model.spec, job.model.sequence_length, job.batch.micro_batch
    return int(checkpoint_bytes(model, sequence, size) * _wider(job))


def sent_boundary_bytes(job: JobSpec) -> int:
    """The same tensor as one stage sends it to another."""
    element = precision_of(job.schedule.dtype).element_bytes
    return boundary_bytes(job) * wire_bytes(job.schedule.boundaries_travel_in) // element


def passed_bytes(job: JobSpec, layout: LayoutSpec) -> int:
    """A rank's part of the tensor between two units: all of it without sequence parallelism."""
    whole = boundary_bytes(job)
    return -(-whole // layout.tensor) if layout.sequence_parallel else whole


def _wider(job: JobSpec) -> float:
    """How much wider the job's activations are than the 2-byte elements formulas count."""
    return precision_of(job.schedule.dtype).element_bytes / ELEMENT_BYTES


_MASTER_BYTES = 4
"""Of a parameter's master weight, where the weights that compute reads are of its dtype and wait
elsewhere: else they are it themselves."""


def unit_of(job: JobSpec, layout: LayoutSpec, block: Block, boundary: int) -> Unit:
    """A block as a unit. Its input is its checkpoint, so `saved` is counted without it."""
    trained = _of_rank(job, layout, block.trained, lambda tensor: tensor.elements)
    precision = precision_of(job.schedule.dtype, job.schedule.gradient_dtype)
    states_bytes = job.train.rule.state_bytes(trained, matrices_of(block))
    return Unit(
        name=_name_of(block),
        view_bytes=_of_rank(job, layout, block.tensors, viewed(precision.weight_bytes)),
        gradient_bytes=precision.gradient_bytes * trained,
        optimizer_bytes=(precision.master_bytes or _MASTER_BYTES * bool(job.view_tier)) * trained
        + states_bytes,
        input_bytes=0 if block.kind == "embedding" else boundary,
        saved_bytes=_saved_bytes(job, layout, block, boundary),
        recoverable=block.kind == "layer",
        head=block.kind == "head",
        scratch_bytes=_scratch_bytes(job, layout, block),
        scores_bytes=_scores_bytes(job, layout) if block.kind == "layer" else 0,
        frozen=not block.trained,
        copy_bytes=4 * trained if job.schedule.averages_by_turns else 0,
        mirror_bytes=(_MASTER_BYTES * trained + states_bytes) if job.schedule.mirror else 0,
    )


def matrices_of(block: Block) -> tuple[Matrix, ...]:
    """A block's whole parameters that are trained, as optimizers see them."""
    return tuple(
        matrix
        for tensor in block.trained
        for matrix in matrices_of_stack(tensor.name, tensor.shape)
    )


def _name_of(block: Block) -> str:
    """A block's name as a unit."""
    return {"embedding": "e", "head": "h"}.get(block.kind, str(block.index))


def gradients_in(schedule: ScheduleSpec) -> str:
    """What to add where gradients are spoken of: " in fp32"; nothing where all is in fp32."""
    return "" if schedule.dtype == FP32 else f" in {schedule.gradient_dtype}"


def optimizer_words(job: JobSpec) -> list[str]:
    """The optimizer as a line of a headline, where it is not the usual one; and how much of the
    model is trained, where that is not all."""
    train, usual = job.train, job.train.optimizer == USUAL_OPTIMIZER
    words = [] if usual else [f"optimizer {train.optimizer}: {train.rule.doc}"]
    if train.tuning is None:
        return words
    every = [tensor for block in blocks(job.model.spec) for tensor in block.tensors]
    trained = _elements(t for t in every if t.trained and not t.tied)
    how = f"adapters of rank {train.lora.rank}" if train.lora else "the others are frozen"
    total = _elements(t for t in every if not t.tied)
    return [*words, f"trains {trained:,} of {total:,} parameters: {how}"]


def own_words(job: JobSpec) -> list[str]:
    """What the figures of a user's own modules rest on, as a line of a headline."""
    if job.model.spec.own is None:
        return []
    return ["your modules are traced: memory that a kernel takes inside itself is estimated"]


def travels(job: JobSpec, idle: Collection[str] = ()) -> list[str]:
    """Which kinds of device compute in another dtype, but for those that a plan leaves idle, and
    how gradients and boundary tensors are sent, as lines of a headline: narrower than they are
    computed, with error feedback, in buckets, or averages of weights in their place; none where
    there is nothing to say."""
    schedule = job.schedule
    words = travel_words(
        schedule.dtype,
        schedule.gradients_travel_in,
        schedule.boundaries_travel_in,
        error_feedback=schedule.error_feedback,
    )
    bucket = schedule.gradient_bucket_bytes
    buckets = [] if bucket is None else [f"gradients sent in buckets of {format_bytes(bucket)}"]
    dtypes = {kind: dtype for kind, dtype in job.dtypes.items() if kind not in idle}
    every = schedule.average_every
    order = f" ({schedule.averages})" if schedule.averages_by_turns else ""
    order += " between sites" if schedule.average_between == "sites" else ""
    outer = ", with an outer step" if job.train.outer_learning_rate else ""
    outer += f" in {schedule.average_wire}" if schedule.average_wire != "fp32" else ""
    averages = [f"weights averaged every {counted(every, 'step')}{order}{outer}"] if every else []
    norm = " and for the norm of all" if job.updates_wait else ""
    waits = (
        (job.optimizer_tier, "optimizer states wait {} for their updates"),
        (job.view_tier, "weights wait {} for each use"),
        (job.gradient_tier, "gradients wait {} for their next micro-batch" + norm),
        (job.activation_tier, "activations wait {} for backward"),
    )
    away = [words.format(TIER_WORDS[tier]) for tier, words in waits if tier]
    away += [
        f"the cluster describes no tier {tier!r}: no plan counts what moving takes"
        for tier in sorted(job.tiers_moved)
        if not all(tier in [each.name for each in kind.tiers] for kind in job.cluster.kinds)
    ]
    named = filter(None, (dtype_words(dtypes, schedule.dtype), words))
    return [*named, *buckets, *away, *averages]


def gathered_bytes_per_param(job: JobSpec, kinds: Iterable[DeviceKind]) -> int:
    """Bytes of a parameter as it is gathered among devices of these kinds: each receives it in its
    own dtype, and all wait for those that receive the most."""
    return max(precision_of(job.dtype_of(kind)).weight_bytes for kind in kinds)


def stores_scores(job: JobSpec) -> bool:
    """Whether attention keeps its scores for backward: where the job says so, or any kind of device
    of the cluster runs it so and the backend follows it."""
    kernels = [kind.kernels for kind in job.cluster.spec.device]
    stored = any(kernel and kernel.attention == "stored" for kernel in kernels)
    return job.schedule.attention == "stored" or (stored and job.backend.keeps_scores)


def _scores_bytes(job: JobSpec, layout: LayoutSpec) -> int:
    """What selective recovery frees in a layer, for one micro-batch."""
    if not stores_scores(job) or job.model.spec.own:
        return 0
    model, sequence, size = job.model.spec, job.model.sequence_length, job.batch.micro_batch
    if job.backend.keeps_scores:
        return int(stored_scores_bytes(model, sequence, size, layout.tensor) * _wider(job))
    element = precision_of(job.schedule.dtype).element_bytes
    return probabilities_bytes(model, sequence, size, layout.tensor, element_bytes=element)


def trains_tied(job: JobSpec, pipeline: int | None = None) -> bool:
    """Whether embedding and head are one matrix that is trained, of which there are two copies;
    `pipeline`: ranks of a replica, those of the job's layout if not given. Where neither is known
    there may be some."""
    if pipeline is None and job.layout is not None:
        pipeline = job.layout.pipeline
    matrix = blocks(job.model.spec)[0].tensors[0]
    return matrix.trained and _copies_tied(job, pipeline)


def _copies_tied(job: JobSpec, pipeline: int | None) -> bool:
    return job.model.spec.tied_embeddings and (job.backend.copies_tied or pipeline != 1)


def held_view_bytes(job: JobSpec, block: Block, pipeline: int, weight_bytes: int) -> int:
    """What the views of a block take on all ranks of its tensor group, in replicas of so many
    pipeline ranks: a tied head has none of the matrix where there is one copy alone.
    `weight_bytes`: of an element in the dtype of compute."""
    return sum(map(viewed(weight_bytes), _held_tensors(job, block.tensors, pipeline)))


def trained_params(job: JobSpec, block: Block, pipeline: int) -> int:
    """How many of its parameters are trained."""
    return _elements(_held_tensors(job, block.trained, pipeline))


def viewed(weight_bytes: int) -> Callable[[Tensor], int]:
    """The bytes of a tensor's view, where `weight_bytes` are those of an element in the dtype of
    compute."""
    return lambda tensor: tensor.view_bytes(weight_bytes)


def _held_tensors(job: JobSpec, tensors: Iterable[Tensor], pipeline: int) -> list[Tensor]:
    copies = _copies_tied(job, pipeline)
    return [tensor for tensor in tensors if copies or not tensor.tied]


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.elements for tensor in tensors)


def _of_rank(
    job: JobSpec, layout: LayoutSpec, tensors: Iterable[Tensor], size: Callable[[Tensor], int]
) -> int:
    """The sizes of tensors on one rank of a tensor group. Where a backend does not divide vectors
    they are counted whole: norms are, and what biases that are divided save is next to nothing."""
    held, divides = _held_tensors(job, tensors, layout.pipeline), job.backend.divides_vectors
    whole = sum(size(t) for t in held if t.whole or (len(t.shape) == 1 and not divides))
    return whole - (-(sum(map(size, held)) - whole) // layout.tensor)


def _scratch_bytes(job: JobSpec, layout: LayoutSpec, block: Block) -> int:
    """Counted where the backend counts it. With sequence parallelism, everywhere: the tensor that a
    layer or the head gathers for its products."""
    if not job.backend.counts_scratch:
        gathers = layout.sequence_parallel and block.kind != "embedding"
        return boundary_bytes(job) if gathers else 0
    precision = precision_of(job.schedule.dtype, job.schedule.gradient_dtype)
    element, gradient = precision.element_bytes, precision.gradient_bytes
    model, length, size = job.model.spec, job.model.sequence_length, job.batch.micro_batch
    if model.own:
        compute = own_cost(model, block.kind, length, size, job.schedule.dtype).scratch_bytes
    else:
        compute = compute_scratch_bytes(
            model,
            block.kind,
            length,
            size,
            element,
            layout.tensor,
            gradient,
            sequence_parallel=layout.sequence_parallel,
            runs_on=job.runs_on,
        )
        if block.kind == "layer" and stores_scores(job):
            compute += stored_scratch_bytes(model, length, element, layout.tensor)
        compute += masks_bytes(model, length)
        compute += unpacked_bytes(block.tensors, element, layout.tensor, job.runs_on)
    if job.train.dropout and block.kind != "head":
        compute += dropped_scratch_bytes(model, length, size, element, job.runs_on)
    if job.backward_sends:
        compute += buckets_scratch_bytes(model, block.kind, length, size, element)
    apart = trains_tied(job) and layout.pipeline > 1
    kernels = kernels_scratch_bytes(element, job.runs_on)
    narrows = layout.pipeline > 1 and job.schedule.boundaries_travel_in != job.schedule.dtype
    optimizer = job.train.rule
    matrices = matrices_of(block) if optimizer.whole else ()
    lanes = lanes_scratch_bytes(
        layout.data,
        layout.tensor,
        tied=apart,
        narrow_boundaries=narrows,
        unlike_views=job.unlike and layout.data > 1,
        runs_on=job.runs_on,
        copies=2 + optimizer.copies,
        whole=max((matrix.elements for matrix in matrices), default=0),
    )
    # A state that is saved is unfolded: of a whole unit, where parameters are not divided.
    lanes += 4 * sum(matrix.elements for matrix in matrices)
    return compute + kernels + lanes


def _saved_bytes(job: JobSpec, layout: LayoutSpec, block: Block, boundary: int) -> int:
    model, sequence, size = job.model.spec, job.model.sequence_length, job.batch.micro_batch
    if model.own:
        return own_cost(model, block.kind, sequence, size, job.schedule.dtype).kept_bytes
    if block.kind == "layer":
        kept = layer_activation_bytes(
            model,
            sequence,
            size,
            tensor=layout.tensor,
            sequence_parallel=layout.sequence_parallel,
        )
        adapters = int(_adapter_bytes(job, block) * _wider(job))
        return int(kept * _wider(job)) - boundary + _scores_bytes(job, layout) + adapters
    if block.kind == "head":
        return -(-logits_bytes(model, sequence, size) // layout.tensor)
    return 0


def _adapter_bytes(job: JobSpec, block: Block) -> int:
    """What the gradients of adapters are made of besides inputs and gradients, in elements of two
    bytes: of each, two matrices of as many columns as its rank, until its weight gradient."""
    lora = job.train.lora
    tokens = job.model.sequence_length * job.batch.micro_batch
    return ELEMENT_BYTES * tokens * lora.rank * len(block.trained) if lora else 0


def parameter_balanced_layers(job: JobSpec, layout: LayoutSpec) -> tuple[int, ...]:
    """Layers per stage such that the largest stage has as few parameters as possible.

    Embedding and head count where they stand. Where stages could do with fewer layers, the
    later ones get them: earlier stages lie idle longer in any case.
    """
    return _parameter_balanced(job.model.spec, layout.pipeline)


@lru_cache(maxsize=256)
def _parameter_balanced(model: ModelSpec, stages: int) -> tuple[int, ...]:
    parts = blocks(model)
    fixed = [0] * stages
    fixed[0] += parts[0].params
    fixed[-1] += parts[-1].params
    return spread(model.layers, fixed, [parts[1].params] * stages, least=0, late=False)
