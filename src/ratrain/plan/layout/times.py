"""What a job takes where it stands: what one micro-batch sends (messages between stages, sums of a
tensor group), and how long a block computes."""

from __future__ import annotations

from dataclasses import replace

from ratrain.cost.blocks import Block, BlockKind
from ratrain.cost.collectives import Transfer, fastest_all_reduce, message, ring_half
from ratrain.cost.compute import OPTIMIZER_BYTES_PER_PARAM, BlockTimes, block_times
from ratrain.cost.gpu_layer import Execution
from ratrain.cost.precision import precision_of
from ratrain.describe.cluster import Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.layout.sizes import boundary_bytes, matrices_of, stores_scores

SUMS: dict[BlockKind, int] = {"embedding": 1, "layer": 2, "head": 1}
"""All-reduces of a block in one direction; a layer's come after attention and after the MLP
(Shoeybi et al. 2019, arXiv 1909.08053)."""


INNER_HALVES: dict[BlockKind, tuple[int, int]] = {
    "embedding": (0, 1),
    "layer": (3, 5),
    "head": (1, 1),
}
"""With sequence parallelism, halves of sums inside a block's compute ops, forward and backward. A
layer gathers what attention and the MLP read and reduces between them; backward it gathers both
gradients too. A head gathers its input, an embedding its gradient."""
GATHERED_AGAIN: dict[BlockKind, tuple[int, int]] = {
    "embedding": (0, 0),
    "layer": (2, 2),
    "head": (1, 0),
}
"""With sequence parallelism, inputs and gradients that weight gradients gather again where they are
an op of their own: whoever keeps them for later keeps its own rows."""


def sums_of_op(
    job: JobSpec, kind: BlockKind, boundary_bytes: int, layout: LayoutSpec, link: Link
) -> Transfer:
    """What an op on the tensor lane sends in one direction, for one micro-batch: all of a block's
    sums; or the last, where the others are part of the backend's compute ops, of which with
    sequence parallelism its gather is one."""
    if not job.backend.sums_in_compute:
        return tensor_sums(SUMS[kind], boundary_bytes, layout, link)
    if layout.sequence_parallel:
        return ring_half(boundary_bytes, layout.tensor, link)
    return tensor_sums(1, boundary_bytes, layout, link)


def inner_sums_s(
    job: JobSpec, kind: BlockKind, boundary_bytes: int, layout: LayoutSpec, link: Link | None
) -> tuple[float, float]:
    """Seconds that a block's compute ops wait for sums inside it, forward and backward, where the
    backend makes them there."""
    if link is None or not job.backend.sums_in_compute:
        return 0.0, 0.0
    choice_s, choice_back_s = _router_s(job, kind, layout, link)
    if layout.sequence_parallel:
        half_s = _half_s(boundary_bytes, layout.tensor, link)
        forward, backward = INNER_HALVES[kind]
        return forward * half_s + choice_s, backward * half_s + choice_back_s
    sums = tensor_sums(SUMS[kind] - 1, boundary_bytes, layout, link)
    inner_s = sums.alone_s(link.bandwidth_bytes_per_s)
    return inner_s + choice_s, inner_s + choice_back_s


def gathered_again_s(
    job: JobSpec, kind: BlockKind, boundary_bytes: int, layout: LayoutSpec, link: Link | None
) -> float:
    """Seconds that a block's weight gradients by themselves wait for what is gathered again; a
    backend whose sums are ops of their own has the gradients whole."""
    if link is None or not layout.sequence_parallel:
        return 0.0
    inputs, gradients = GATHERED_AGAIN[kind]
    count = inputs + gradients * job.backend.sums_in_compute
    return count * _half_s(boundary_bytes, layout.tensor, link)


def _half_s(size_bytes: float, tensor: int, link: Link) -> float:
    """Seconds of a gather, or of the other half of a sum, that has a group's link to itself."""
    return ring_half(size_bytes, tensor, link).alone_s(link.bandwidth_bytes_per_s)


def _router_s(job: JobSpec, kind: BlockKind, layout: LayoutSpec, link: Link) -> tuple[float, float]:
    """Of a layer with experts: its router's logits are gathered, and the gradients of the chosen
    experts' weights summed in fp32."""
    experts = job.model.spec.experts
    if experts is None or kind != "layer":
        return 0.0, 0.0
    tokens = job.model.sequence_length * job.batch.micro_batch
    logits_bytes = precision_of(job.schedule.dtype).element_bytes * tokens * experts.count
    summed = fastest_all_reduce(4 * tokens * experts.chosen, layout.tensor, link)
    summed_s = summed.alone_s(link.bandwidth_bytes_per_s)
    return _half_s(logits_bytes, layout.tensor, link), summed_s


def tensor_sums(count: int, boundary_bytes: int, layout: LayoutSpec, link: Link) -> Transfer:
    """What that many sums of a block send, for one micro-batch.

    With sequence parallelism a sum is a reduce-scatter and an all-gather, each started by itself
    (arXiv 2205.05198, section 4.2.2). Each gather is counted beside a sum: the head's first with
    the embedding. Not counted: inputs gathered again in backward, beneath its products; but where
    weight gradients are ops of their own, see `gathered_again_s`.
    """
    if layout.sequence_parallel:
        return ring_half(boundary_bytes, layout.tensor, link).times(2 * count)
    return fastest_all_reduce(boundary_bytes, layout.tensor, link).times(count)


def boundary_message(
    job: JobSpec,
    size_bytes: int,
    link: Link,
    device: DeviceKind,
    groups: tuple[LayoutSpec, LayoutSpec],
    inside: Link | None,
) -> Transfer:
    """A tensor from a stage's tensor group to that of a neighbouring stage, as a rank of the sender
    sees it. `groups`: the layouts of both; `inside`: the receiver's own link, None where it is one
    rank.

    Each rank sends its part. Where the sequence is divided that is all (arXiv 2205.05198); else the
    receiving group gathers the parts over its own links (arXiv 2104.04473, section 4.1), unless the
    backend or the device's software has each rank send the whole tensor.
    """
    (here, there), kernels = groups, device.kernels
    if here.tensor != there.tensor:
        over, degrees = None if there.sequence_parallel else inside, (here.tensor, there.tensor)
        return regrouped_message(size_bytes, link, device, degrees, gathered_over=over)
    blocking = kernels is not None and kernels.blocking_sends
    whole = job.backend.whole_sends or (kernels is not None and kernels.whole_sends)
    if inside is None or (whole and not here.sequence_parallel):
        return message(size_bytes, link, blocking=blocking)
    after_s = 0.0 if here.sequence_parallel else _half_s(size_bytes, here.tensor, inside)
    return message(size_bytes // here.tensor, link, blocking=blocking, after_s=after_s)


def regrouped_message(
    boundary_bytes: int,
    link: Link,
    device: DeviceKind,
    degrees: tuple[int, int],
    *,
    gathered_over: Link | None,
) -> Transfer:
    """A tensor from one tensor group to another of another degree, as a rank sees it.

    Every byte crosses once, whatever the degrees: each rank of the sender sends its part, cut where
    the receivers' parts end, and the ranks of the smaller group are the ones that are busy. Where
    each receiver needs all of it, the group gathers it over its own link, `gathered_over`.
    """
    cells = most_cells(*degrees)
    sent = message(boundary_bytes / min(degrees) / cells, link).times(cells)
    if gathered_over is not None:
        gather_s = _half_s(boundary_bytes, degrees[1], gathered_over)
        sent = replace(sent, latency_s=sent.latency_s + gather_s)
    if device.kernels is not None and device.kernels.blocking_sends:
        return replace(sent, driving_s=sent.alone_s(link.bandwidth_bytes_per_s))
    return sent


def most_cells(sources: int, targets: int) -> int:
    """Messages that the busiest rank sends or receives where a tensor in `sources` equal parts
    becomes one in `targets`: parts of the other side that overlap its own."""
    few, many = sorted((sources, targets))
    return max(-(-(part + 1) * many // few) - part * many // few for part in range(few))


def times_in_layout(
    job: JobSpec,
    layout: LayoutSpec,
    block: Block,
    device: DeviceKind,
    tensor_link: Link | None,
    *,
    selective: bool = False,
) -> BlockTimes:
    """The `BlockTimes` of a block on a device whose tensor group has that link; None where it is
    alone. On a backend whose compute ops contain a unit's inner sums, forward, recovery and
    backward wait for them."""
    job = job.of_kind(device)
    boundary, sums_s = boundary_bytes(job), 0.0
    if tensor_link is not None:  # all sums in one direction, over a link that nothing else uses
        sums = tensor_sums(SUMS[block.kind], boundary, layout, tensor_link)
        sums_s = sums.alone_s(tensor_link.bandwidth_bytes_per_s)
    times = block_times(
        block,
        device,
        micro_batch=job.batch.micro_batch,
        sequence=job.model.sequence_length,
        dtype=job.schedule.dtype,
        tensor=layout.tensor,
        execution=Execution(layout.sequence_parallel, selective and stores_scores(job)),
        sums_s=sums_s,
    )
    optimizer = job.train.rule
    update_flops = optimizer.update_flops(matrices_of(block))
    again_s = gathered_again_s(job, block.kind, boundary, layout, tensor_link)
    times = replace(
        times,
        split_s=times.split_s + again_s,
        update_moves=optimizer.moved_bytes / OPTIMIZER_BYTES_PER_PARAM,
        # A device whose layers were measured may say no rate: most optimizers need none.
        update_flops_s=update_flops and update_flops / device.flops_rate(job.schedule.dtype),
    )
    if times.sums_inside:
        return times
    forward_s, backward_s = inner_sums_s(job, block.kind, boundary, layout, tensor_link)
    return replace(
        times,
        forward_s=times.forward_s + forward_s,
        input_gradient_s=times.input_gradient_s + backward_s,
    )
