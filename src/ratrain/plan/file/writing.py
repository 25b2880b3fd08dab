"""Plan files written: of candidates of a layout, and of any replicas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ratrain.describe.job import JobSpec
from ratrain.describe.program_keys import PROGRAM_KEYS, in_plan, said_by
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
    carried: dict[str, Any] = {in_plan(key): key.of(job) for key in PROGRAM_KEYS}
    return Plan(
        format=FORMAT,
        model=PlanModel(job.model.name, job.model.sequence_length),
        cluster=PlanCluster(job.cluster.name, job.cluster.devices),
        sequences=job.batch.sequences,
        skeleton=file_of(chosen.skeleton),
        accumulation="sharded" if mode.sharded_gradients else "local",
        recovery_buffer=recovery_buffer,
        prefetch=chosen.prefetch,
        replicas=tuple(replicas),
        sequence_parallel=sequence_parallel,
        predicted=predicted,
        **carried,
    )


def write_plan(plan: Plan) -> str:
    """The plan's JSON: one line for each stage or member, so that it can be read and edited."""
    head: dict[str, Any] = {
        "format": plan.format,
        "model": {"name": plan.model.name, "sequence_length": plan.model.sequence_length},
        "cluster": {"name": plan.cluster.name, "devices": plan.cluster.devices},
        "sequences": plan.sequences,
        "skeleton": plan.skeleton,
        "accumulation": plan.accumulation,
        "recovery_buffer": plan.recovery_buffer,
        "prefetch": plan.prefetch,
    }
    if plan.sequence_parallel:
        head["sequence_parallel"] = True
    head |= {key.plan or key.file_key: value for key, value in said_by(plan)}
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
