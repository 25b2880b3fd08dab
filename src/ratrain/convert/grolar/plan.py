"""Grolar's pipeline of groups as replicas of fixed ranks, or as stages of several members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ratrain.convert.converted import (
    DTYPES,
    Choices,
    Model,
    plan_for,
)
from ratrain.convert.grolar.files import (
    Ministage,
    Training,
)
from ratrain.convert.member_stages import dealt, member_stage
from ratrain.describe.amounts import Devices
from ratrain.describe.ranges import write_ranges
from ratrain.errors import SpecError
from ratrain.plan.file import PlanFile, PlanReplica, PlanStage
from ratrain.readers.files import shown
from ratrain.readers.place import Place


def plan_of(
    training: Training, place: Place, model: Model, devices: Devices, differs: list[str]
) -> PlanFile:
    here = place.at("pipeline_config")
    for number, stage in enumerate(training.pipeline_config):
        _require_stage(stage, devices, here.at(number))
    groups = _groups(training, here)
    layers = _layers(training, model, here)
    divided = _divided(training, groups, here)
    total = sum(divided[0]) * training.microbatch_size
    if total != training.global_batch_size:
        raise SpecError(
            f"the ranks' micro-batches hold {total} sequences, the batch has "
            f"{training.global_batch_size}",
            place=str(place.at("global_batch_size")),
            fix=f"write {total}, or correct num_microbatches_per_rank",
        )
    if all(shares == divided[0] for shares in divided):
        replicas = _replicas(training, layers, divided[0])
    else:
        replicas = (_shared_replica(training, layers, divided),)
        differs.append(_SERVED)
    differs += _said_of_plan(training, groups)
    choices = Choices(
        "pe-zero",
        training.global_batch_size,
        training.sequence_length,
        DTYPES[training.autocast_dtype],
    )
    return plan_for(model, devices, choices, replicas)


_SERVED = (
    "its groups divide the micro-batches each in its own way; which rank of a group takes which is "
    "not in the file: here they take turns in proportion to their shares"
)


def _replicas(
    training: Training, layers: Sequence[int], shares: Sequence[int]
) -> tuple[PlanReplica, ...]:
    """All groups divide the micro-batches alike: the i-th ranks of all groups are a pipeline."""
    replicas: list[PlanReplica] = []
    taken = 0
    for share, count in Counter(shares).items():
        stages = tuple(
            PlanStage(
                devices=write_ranges([rank for rank, _ in _by_share(stage)[taken : taken + count]]),
                tensor=1,
                layers=stage_layers,
                micro_batch=training.microbatch_size,
                recovery="backward",
                sharding=3,
            )
            for stage, stage_layers in zip(training.pipeline_config, layers, strict=True)
        )
        replicas.append(PlanReplica(count, share, stages))
        taken += count
    return tuple(replicas)


def _shared_replica(
    training: Training, layers: Sequence[int], divided: Sequence[Sequence[int]]
) -> PlanReplica:
    """Each group divides the micro-batches in its own way: one pipeline whose stages have the
    group's ranks as members."""
    stages = tuple(
        member_stage(
            [(rank,) for rank, _ in _by_share(stage)],
            dealt([share for _, share in _by_share(stage)]),
            layers=stage_layers,
            micro_batch=training.microbatch_size,
            recovery="backward",
            sharding=3,
        )
        for stage, stage_layers in zip(training.pipeline_config, layers, strict=True)
    )
    return PlanReplica(1, sum(divided[0]), stages)


def _require_stage(stage: Ministage, devices: int, here: Place) -> None:
    ranks = stage.gpu_ranks
    if not ranks or len(set(ranks)) < len(ranks) or max(ranks) >= devices:
        raise SpecError(
            f"ranks {shown(list(ranks), 60)} are not among 0 to {devices - 1}, each once",
            place=str(here.at("gpu_ranks")),
            fix="list ranks of the cluster file, each once",
        )
    if len(stage.num_microbatches_per_rank) != len(ranks):
        raise SpecError(
            f"{len(stage.num_microbatches_per_rank)} numbers of micro-batches for {len(ranks)} "
            "ranks",
            place=str(here.at("num_microbatches_per_rank")),
            fix="give one for each rank",
        )
    if len(stage.layer_partition) != 2:
        raise SpecError(
            f"{len(stage.layer_partition)} numbers",
            place=str(here.at("layer_partition")),
            fix="give the first layer and the one after the last",
        )


def _groups(training: Training, here: Place) -> int:
    """How many groups there are: ministages go round them in turns."""
    stages = training.pipeline_config
    if not stages:
        raise SpecError("no stages", place=str(here), fix="list one stage")
    seen: list[frozenset[int]] = []
    for number, stage in enumerate(stages):
        ranks = frozenset(stage.gpu_ranks)
        if ranks in seen:
            break
        overlap = next((group for group in seen if group & ranks), None)
        if overlap is not None:
            raise SpecError(
                f"rank {min(overlap & ranks)} is in two groups",
                place=str(here.at(number, "gpu_ranks")),
                fix="list each rank in one group",
            )
        seen.append(ranks)
    for number, stage in enumerate(stages):
        first = stages[number % len(seen)]
        if _by_share(stage) != _by_share(first):
            raise SpecError(
                "this ministage has other ranks or shares than its counterpart a round before",
                place=str(here.at(number)),
                fix="list the groups in the same order in every round, each with the same shares",
            )
    if len(stages) % len(seen):
        raise SpecError(
            f"{len(stages)} ministages for {len(seen)} groups",
            place=str(here),
            fix="give every group as many ministages",
        )
    return len(seen)


def _by_share(stage: Ministage) -> list[tuple[int, int]]:
    """(rank, micro-batches) of a stage's ranks, most first; those without any are left out."""
    pairs = zip(stage.gpu_ranks, stage.num_microbatches_per_rank, strict=True)
    return sorted((pair for pair in pairs if pair[1]), key=lambda pair: (-pair[1], pair[0]))


def _divided(training: Training, groups: int, here: Place) -> list[list[int]]:
    """How each group divides the micro-batches among its ranks, the largest share first."""
    divided = [
        [share for _, share in _by_share(stage)] for stage in training.pipeline_config[:groups]
    ]
    if not divided[0]:
        raise SpecError(
            "no rank has a micro-batch",
            place=str(here.at(0, "num_microbatches_per_rank")),
            fix="give one rank a share",
        )
    for number, shares in enumerate(divided):
        if sum(shares) != sum(divided[0]):
            raise SpecError(
                f"this group has {sum(shares)} micro-batches, the first has {sum(divided[0])}",
                place=str(here.at(number, "num_microbatches_per_rank")),
                fix="give every group as many micro-batches",
            )
    return divided


def _layers(training: Training, model: Model, here: Place) -> list[int]:
    """Layers of each ministage; together they are the model's."""
    expected = 0
    for number, stage in enumerate(training.pipeline_config):
        first, end = stage.layer_partition
        if first != expected or end <= first:
            raise SpecError(
                f"layers {first} to {end - 1} where layer {expected} is expected",
                place=str(here.at(number, "layer_partition")),
                fix=f"begin with {expected}, and give it at least one layer",
            )
        expected = end
    if expected != model.spec.layers:
        raise SpecError(
            f"its stages have {expected} layers, {model.spec.name} has {model.spec.layers}",
            place=str(here),
            fix=f"give the model with {expected} layers as --model",
        )
    return [
        stage.layer_partition[1] - stage.layer_partition[0] for stage in training.pipeline_config
    ]


def _said_of_plan(training: Training, groups: int) -> list[str]:
    said = [
        "schedule pe-zero: breadth-first, every weight gathered once in forward and once in "
        "backward, whole layers recovered",
        "Grolar keeps shards and inputs in host memory, RATrain in GPU memory, so it needs more "
        "of that; Grolar's reserve of 2 GB is left out",
    ]
    if training.reduce_dtype == "float32" and training.autocast_dtype != "float32":
        said.append("Grolar sends gradients in float32, RATrain in 16 bits: half the bytes")
    idle = [
        rank
        for stage in training.pipeline_config[:groups]
        for rank, share in zip(stage.gpu_ranks, stage.num_microbatches_per_rank, strict=True)
        if not share
    ]
    if idle:
        said.append(f"ranks without a micro-batch are left idle: {write_ranges(sorted(idle))}")
    if any(len(stage.zero_config) > 1 for stage in training.pipeline_config):
        said.append("RATrain shards states over the whole group, Grolar over parts of it")
    if training.latency is not None:
        said.append(
            "Grolar's time counts only layers (no embedding, head or update), a start and an end "
            "at the pace of each group's slowest GPU, and collectives a thousand times too short"
        )
    return said
