"""What a training framework keeps in memory that our own program does not: one model each.

A published peak was measured on some framework. A row is built and proved as a program of
ours; its units then carry the bytes that the framework's would, and nothing else changes. Every
figure here is the framework's, for all of its rows; what differs between two rows is in the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ratrain.cost.blocks import Block
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.units import format_bytes
from ratrain.plan.layout import blocks_of_stages
from ratrain.program.replicas import Stage, Unit
from ratrain.program.setup import Setup


@dataclass(frozen=True)
class Framework:
    """Bytes a parameter and bytes an element, and what is allocated whatever the job.

    Gradients and buffers are allocated before the first step and never freed, so they count with
    the weights. `optimizer_bytes` is what sharding divides. `fixed_bytes`: context, libraries and
    whatever else a device's memory holds beside tensors, where the peaks count it.
    """

    name: str
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    element_bytes: int
    logit_bytes: int  # of each logit kept between the head's forward and its backward
    logit_gradient_bytes: int  # and made by the head's backward
    source: str
    buffer_bytes: int = 0  # of each parameter: what communication and copies keep
    fixed_bytes: int = 0

    @property
    def standing_bytes(self) -> int:
        """Of each parameter, without the optimizer."""
        return self.weight_bytes + self.gradient_bytes + self.buffer_bytes

    def __str__(self) -> str:
        buffers = f", {self.buffer_bytes} of buffers" if self.buffer_bytes else ""
        fixed = f"; {format_bytes(self.fixed_bytes)} more" if self.fixed_bytes else ""
        return (
            f"{self.name}, bytes per parameter: weight {self.weight_bytes}, gradient "
            f"{self.gradient_bytes}, optimizer {self.optimizer_bytes}{buffers}{fixed}"
        )


MEGATRON = Framework(
    name="megatron-lm",
    weight_bytes=2,
    gradient_bytes=4,
    optimizer_bytes=12,
    element_bytes=2,
    logit_bytes=6,
    logit_gradient_bytes=2,
    source="arXiv 2205.05198: 16-bit weights, fp32 main gradients and Adam's three; NVIDIA/"
    "Megatron-LM: logits in 16 bits, their fp32 copy for the cross-entropy (done in place), and "
    "their gradient in 16 bits. torch.cuda.max_memory_allocated counts neither the CUDA context "
    "nor NCCL, and rounds each tensor up to 512 bytes: neither is added.",
)
SAILOR = Framework(
    name="sailor",
    weight_bytes=4,
    gradient_bytes=4,
    optimizer_bytes=8,
    element_bytes=4,
    logit_bytes=4,
    logit_gradient_bytes=4,
    buffer_bytes=8,
    fixed_bytes=5_060_000_000,
    source="github.com/eth-easl/sailor, the planner's memory formula: 4 bytes of weight, 4 of "
    "gradient, 8 of Adam, 4 for communication and 4 of copies, and 5.06 GB beside. Its peaks are "
    "what nvidia-smi shows, so they hold the context and what the allocator keeps.",
)


def held_by(framework: Framework, setup: Setup, job: JobSpec, *, dropout: bool) -> Setup:
    """The setup of a placed job with the framework's bytes in each unit."""
    assert job.layout is not None
    blocks = blocks_of_stages(job, job.layout)

    def held(stage: Stage, parts: Sequence[Block]) -> Stage:
        return Stage(
            tuple(
                replace(
                    member, units=held_units(framework, member.units, parts, job, dropout=dropout)
                )
                for member in stage.members
            )
        )

    replicas = tuple(
        replace(replica, stages=tuple(map(held, replica.stages, blocks)))
        for replica in setup.replicas
    )
    return replace(setup, replicas=replicas)


def held_units(
    framework: Framework,
    units: Sequence[Unit],
    blocks: Sequence[Block],
    job: JobSpec,
    *,
    dropout: bool,
) -> tuple[Unit, ...]:
    """Our units, each with its block, as the framework holds them."""
    return tuple(
        _held(framework, unit, block, job, dropout)
        for unit, block in zip(units, blocks, strict=True)
    )


def _held(framework: Framework, unit: Unit, block: Block, job: JobSpec, dropout: bool) -> Unit:
    layout = job.layout
    assert layout is not None
    params = _params_of_rank(block, layout)
    tokens = job.batch.micro_batch * job.model.sequence_length
    # What is outside the products that a tensor group divides (arXiv 2205.05198, table 2).
    outside = tokens * block.model.hidden // (layout.tensor if layout.sequence_parallel else 1)
    logits = tokens * block.model.vocab // layout.tensor
    inner = tokens * block.model.ffn // layout.tensor
    saved, scratch = unit.saved_bytes, unit.scratch_bytes
    if block.kind == "layer":
        if dropout:
            saved += 2 * outside  # masks after attention and after the MLP
        elif unit.scores_bytes:  # the softmax's output alone
            heads = block.model.heads // layout.tensor
            scores_bytes = framework.element_bytes * heads * tokens * job.model.sequence_length
            saved += scores_bytes - unit.scores_bytes
        scratch += 2 * inner * framework.element_bytes  # gradients around the activation
    elif block.kind == "head":
        # The final norm's output besides the logits; the norm's input is the unit's.
        saved = outside * framework.element_bytes + logits * framework.logit_bytes
        scratch += logits * framework.logit_gradient_bytes
    else:
        saved += outside if dropout else 0  # the mask after the embedding
    scores = min(unit.scores_bytes, saved)
    return replace(
        unit,
        view_bytes=framework.standing_bytes * params,
        gradient_bytes=0,
        optimizer_bytes=framework.optimizer_bytes * params,
        saved_bytes=saved,
        scratch_bytes=scratch,
        scores_bytes=scores,
    )


def _params_of_rank(block: Block, layout: LayoutSpec) -> int:
    """Parameters of a block on one rank: vectors and learned positions whole on every rank, a
    head that is tied to an embedding on the same rank not at all."""
    tensors = block.tensors
    if layout.pipeline == 1:
        tensors = tuple(tensor for tensor in tensors if not tensor.tied)
    undivided = sum(
        tensor.elements
        for tensor in tensors
        if len(tensor.shape) == 1 or tensor.name == "embedding.positions"
    )
    divided = sum(tensor.elements for tensor in tensors) - undivided
    return undivided - (-divided // layout.tensor)
