"""Plan files written: of candidates of a layout, and of any replicas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ratrain.describe.job import JobSpec
from ratrain.describe.ranges import write_ranges
from ratrain.plan.file.form import (
    FORMAT,
    Plan,
    PlanCluster,
    PlanMember,
    PlanModel,
    PlanReplica,
    PlanStage,
    Predicted,
    bucket_of,
    dtypes_of,
    wires_of,
)
from ratrain.plan.layout.candidate import Candidate
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.fixed_orders import file_of
from ratrain.program.strategies import Strategy


def plan_of(candidate: Candidate, predicted: Predicted | None = None) -> Plan:
    """The plan that says what a candidate is."""
    job, layout = candidate.job, candidate.layout
    replicas: list[PlanReplica] = []
    for alike in candidate.placement.classes:
        stages: list[PlanStage] = []
        for number, (layers, recovery) in enumerate(
            zip(candidate.layers, candidate.recovery, strict=True)
        ):
            members = [
                candidate.placement.device(number % layout.pipeline, data, tensor).index
                for data in alike.members
                for tensor in range(layout.tensor)
            ]
            stages.append(
                PlanStage(
                    devices=write_ranges(members),
                    tensor=layout.tensor,
                    layers=layers,
                    micro_batch=job.batch.micro_batch,
                    recovery=recovery.value,
                    sharding=candidate.mode.sharding,
                )
            )
        replicas.append(PlanReplica(len(alike.members), candidate.micro_batches, tuple(stages)))
    return plan_of_replicas(
        job,
        candidate.strategy,
        candidate.mode,
        candidate.buffer,
        replicas,
        sequence_parallel=layout.sequence_parallel,
        predicted=predicted,
    )


def plan_of_replicas(
    job: JobSpec,
    chosen: Strategy,
    mode: StateMode,
    recovery_buffer: int,
    replicas: Sequence[PlanReplica],
    *,
    sequence_parallel: bool,
    predicted: Predicted | None,
) -> Plan:
    """The plan of a job on these replicas, with all that the job says besides."""
    schedule = job.schedule
    return Plan(
        format=FORMAT,
        model=PlanModel(job.model.name, job.model.sequence_length),
        cluster=PlanCluster(job.cluster.name, job.cluster.devices),
        sequences=job.batch.sequences,
        dtype=schedule.dtype,
        schedule=schedule.name,
        skeleton=file_of(chosen.skeleton),
        without=schedule.without,
        accumulation="sharded" if mode.sharded_gradients else "local",
        recovery_buffer=recovery_buffer,
        prefetch=chosen.prefetch,
        replicas=tuple(replicas),
        memory_budget_bytes=schedule.memory_budget_bytes,
        backend=schedule.backend,
        passes=schedule.passes,
        average_every=schedule.average_every,
        clip_norm=job.train.clip_norm,
        overflow=job.train.overflow,
        recover_heads=schedule.recover_heads,
        sequence_parallel=sequence_parallel,
        attention=schedule.attention,
        gradient_dtype=schedule.gradient_dtype,
        dtypes=job.dtypes,
        gradient_wire=schedule.gradient_wire,
        boundary_wire=schedule.boundary_wire,
        error_feedback=schedule.error_feedback,
        gradient_bucket_bytes=schedule.gradient_bucket_bytes,
        collective=schedule.collective,
        predicted=predicted,
    )


def write_plan(plan: Plan) -> str:
    """The plan's JSON: one line for each stage or member, so that it can be read and edited."""
    head: dict[str, Any] = {
        "format": plan.format,
        "model": {"name": plan.model.name, "sequence_length": plan.model.sequence_length},
        "cluster": {"name": plan.cluster.name, "devices": plan.cluster.devices},
        "sequences": plan.sequences,
        "dtype": plan.dtype,
        "gradient_dtype": plan.gradient_dtype,
        "backend": plan.backend,
        "schedule": plan.schedule,
        "skeleton": plan.skeleton,
        "without": list(plan.without),
        "accumulation": plan.accumulation,
        "recovery_buffer": plan.recovery_buffer,
        "prefetch": plan.prefetch,
    }
    if plan.memory_budget_bytes is not None:
        head["memory_budget"] = f"{plan.memory_budget_bytes}B"
    if plan.passes is not None:
        head["passes"] = list(plan.passes)
    if plan.average_every is not None:
        head["average_every"] = plan.average_every
    if plan.clip_norm is not None:
        head["clip_norm"] = plan.clip_norm
    if plan.overflow != "step":
        head["overflow"] = plan.overflow
    if plan.recover_heads is not None:
        head["recover_heads"] = plan.recover_heads
    if plan.collective is not None:
        head["collective"] = plan.collective
    if plan.sequence_parallel:
        head["sequence_parallel"] = True
    if plan.attention != "flash":
        head["attention"] = plan.attention
    head |= dtypes_of(plan)
    head |= wires_of(plan)
    head |= bucket_of(plan)
    if plan.predicted is not None:
        head["predicted"] = vars(plan.predicted)
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    lines.append('  "replicas": [')
    for number, replica in enumerate(plan.replicas):
        lines.append(f'    {{"count": {replica.count}, "micro_batches": {replica.micro_batches},')
        lines.append('     "stages": [')
        lines.append(",\n".join(map(_stage_lines, replica.stages)))
        lines.append("     ]}" + "," * (number < len(plan.replicas) - 1))
    return "\n".join(["{", *lines, "  ]", "}", ""])


def _stage_lines(stage: PlanStage) -> str:
    """A stage as a line, and further lines for its members where it lists them."""
    if stage.members is None:
        return f"       {json.dumps(_said(stage))}"
    head = {name: value for name, value in _said(stage).items() if name != "members"}
    members = ",\n".join(f"          {json.dumps(_said(member))}" for member in stage.members)
    return f'       {json.dumps(head)[:-1]}, "members": [\n{members}\n       ]}}'


def _said(part: PlanStage | PlanMember) -> dict[str, Any]:
    """The fields of a stage or member; one that is left out by default is left out."""
    return {name: value for name, value in vars(part).items() if value is not None}
