"""Where a job's block times come from, in words: a layer profile, read how, or a device's rates."""

from __future__ import annotations

from collections.abc import Iterator

from ratrain.cost.compute import case_of_block
from ratrain.cost.gpu_layer import Execution
from ratrain.cost.measured import Unmeasured, conditions, measured
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.layout.enumerate import kinds_of_block
from ratrain.plan.layout.plan import Plan


def plan_measured(plan: Plan) -> list[str]:
    """One sentence for each device kind of a plan that has a layer profile, and degree."""
    sentences = [
        sentence
        for replica in plan.replicas
        for rank, group in enumerate(replica.groups[0])
        for sentence in _words_of(
            plan.job_of(replica, rank), replica.layout_of(rank), group[0].kind
        )
    ]
    return list(dict.fromkeys(sentences))


def _words_of(job: JobSpec, layout: LayoutSpec, kind: DeviceKind) -> list[str]:
    """The sentence of one device kind; none where it has no layer profile."""
    if not kind.layer_profile:
        return []
    job = job.of_kind(kind)
    return [f"times on {kind.name}: {'; '.join(_told(job, layout, kind))}"]


def left_out_words(job: JobSpec) -> list[str]:
    """What a search did not try because the model's layers were not measured in it: one sentence
    for each device kind on which they were measured at all."""
    kinds = {device.kind.name: device.kind for device in job.cluster.members()}
    layer = kinds_of_block(job)[1]
    sentences: list[str] = []
    for name, kind in kinds.items():
        case = case_of_block(layer, job.model.sequence_length, 1, job.dtype_of(kind))
        known = [
            other
            for other in conditions(kind, case)
            if (other.sequence, other.dtype) == (case.sequence, case.dtype)
        ]
        if known:
            degrees = sorted({other.tensor for other in known})
            divided = "" if any(other.sequence_parallel for other in known) else "out"
            sentences.append(
                f"layers were measured on {name} at tensor {', '.join(map(str, degrees))}, "
                f"with{divided} sequence parallelism: no other degree was tried"
            )
    return sentences


def _told(job: JobSpec, layout: LayoutSpec, kind: DeviceKind) -> Iterator[str]:
    """Blocks of one origin together, layers first."""
    by_origin: dict[str, list[str]] = {}
    embedding, layer, head = kinds_of_block(job)
    for block in (layer, embedding, head):
        case = case_of_block(
            block,
            job.model.sequence_length,
            layout.tensor,
            job.schedule.dtype,
            Execution(layout.sequence_parallel),
        )
        try:
            known = measured(kind, case, job.batch.micro_batch, job.model.spec.name)
        except Unmeasured:  # no stage of this kind holds it, else nothing could be priced
            continue
        origin = known.how if known else "from its rates, not measured"
        name = "layers" if block.kind == "layer" else block.kind
        by_origin.setdefault(origin, []).append(name)
    for origin, blocks in by_origin.items():
        yield f"{', '.join(blocks)} {origin}"
