"""Plan files written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ratrain.describe.program_keys import PROGRAM_KEYS, in_plan, said_by
from ratrain.describe.ranges import write_ranges
from ratrain.plan.file.form import (
    FORMAT,
    PlanCluster,
    PlanFile,
    PlanMember,
    PlanModel,
    PlanReplica,
    PlanStage,
    Predicted,
    share_text,
)
from ratrain.plan.layout.orders import file_of
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.replica import PlacedReplica


def file_of_plan(plan: Plan, predicted: Predicted | None = None) -> PlanFile:
    """The plan file of a plan, with all that its job says."""
    job = plan.job
    carried: dict[str, Any] = {in_plan(key): key.of(job) for key in PROGRAM_KEYS}
    return PlanFile(
        format=FORMAT,
        model=PlanModel(job.model.name, job.model.sequence_length),
        cluster=PlanCluster(job.cluster.name, job.cluster.devices),
        sequences=job.batch.sequences,
        skeleton=file_of(plan.strategy.skeleton),
        accumulation="sharded" if plan.mode.sharded_gradients else "local",
        recovery_buffer=plan.buffer,
        prefetch=plan.strategy.prefetch,
        replicas=tuple(_entry(plan, replica) for replica in plan.replicas),
        sequence_parallel=plan.sequence_parallel,
        predicted=predicted,
        **carried,
    )


def _entry(plan: Plan, replica: PlacedReplica) -> PlanReplica:
    return PlanReplica(
        len(replica.members),
        replica.micro_batches,
        tuple(_stage(plan, replica, number) for number in range(replica.layout.stages)),
    )


def _stage(plan: Plan, replica: PlacedReplica, number: int) -> PlanStage:
    members = [
        PlanMember(
            write_ranges([d.index for groups in replica.groups for d in groups[rank]]),
            replica.tensor[rank],
            share_text(replica.serves[rank]),
            mode.value,
        )
        for (stage, rank), mode in zip(replica.held, replica.recovery, strict=True)
        if stage == number
    ]
    several = PlanStage(
        layers=replica.layers[number],
        micro_batch=replica.micro_batch * replica.joined_of(replica.ranks_of(number)[0]),
        sharding=plan.mode.sharding,
        members=tuple(members),
    )
    if len(members) > 1:
        return several
    only = several.only
    return replace(
        several, devices=only.devices, tensor=only.tensor, recovery=only.recovery, members=None
    )


def write_plan(plan: PlanFile) -> str:
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
