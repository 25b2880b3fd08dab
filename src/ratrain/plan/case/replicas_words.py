"""Replicas that differ, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ratrain.cost.algorithms import Hosts
from ratrain.describe.ranges import (
    RANKS,
    STAGES,
    write_degrees,
    write_kinds,
    write_list,
    write_ranges,
)
from ratrain.describe.units import counted
from ratrain.plan.case.layout_words import recovery_words
from ratrain.plan.file.form import share_text
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.replica import PlacedReplica


def shapes(plan: Plan) -> str:
    """How many replicas it has, and of how many shapes."""
    replicas, shapes = counted(plan.setup.data, "replica"), len(plan.setup.replicas)
    if plan.setup.data == 1:
        return replicas
    return f"{replicas}, all alike" if shapes == 1 else f"{replicas} of {shapes} shapes"


def share_words(micro_batches: int, size: int) -> str:
    """A replica's share of a step: "9 micro-batches of 1 sequence"."""
    return (
        f"{micro_batches:,} micro-batch{'es' * (micro_batches != 1)} of {counted(size, 'sequence')}"
    )


def joined_words(replica: PlacedReplica) -> list[str]:
    """How many sequences its ranks compute at once, where they differ in that; else nothing."""
    if not replica.joined:
        return []
    return [f"sequences at once per rank {write_list(replica.sizes, RANKS)}"]


def activations_words(replica: PlacedReplica, first_rank: int = 0) -> str:
    """What a replica keeps and recovers: "kept on every stage". Where stages have several members
    that differ, what its ranks do, numbered from `first_rank`."""
    if not replica.has_members or len(set(replica.recovery)) == 1:
        return recovery_words(replica.recovery)
    return recovery_words(replica.recovery, RANKS, first_rank)


def short_name(plan: Plan) -> str:
    """What tells a plan of replicas that differ from others, in one line."""
    return " + ".join(map(_replica_words, plan.replicas))


def _replica_words(replica: PlacedReplica) -> str:
    """ "2 x 4, 2 layers on new, old with 8 micro-batches of 2 sequences"."""
    times = f"{len(replica.members)} x " if len(replica.members) > 1 else ""
    tensor = f", tensor {write_degrees(replica.tensor)}" if max(replica.tensor) > 1 else ""
    sizes = f", {write_list(replica.sizes, STAGES)} at once" if replica.joined else ""
    members = " members" if replica.has_members else ""
    return (
        f"{times}{write_list(replica.layers, STAGES)} layers on {write_list(replica.kinds, STAGES)}"
        f"{members}{tensor} with {share_words(replica.micro_batches, replica.micro_batch)}{sizes}"
    )


def name(plan: Plan) -> str:
    """The layers of each replica's stages: "5 + 2 + 1 layers | 8 layers"."""
    replicas = [replica for replica in plan.replicas for _ in replica.members]
    return " | ".join(_cut(replica) for replica in replicas[:8]) + " | ..." * (len(replicas) > 8)


def _cut(replica: PlacedReplica) -> str:
    """ "8 layers" or "5 + 2 + 1 layers" of a replica."""
    return f"{' + '.join(map(str, replica.layers))} layers"


def _details_of(replica: PlacedReplica) -> str:
    """Its numbers, layers, degrees, share and activations."""
    layers = write_list(replica.layers, STAGES)
    at_once = joined_words(replica)
    return (
        f"replica {write_ranges(replica.members)}: layers per stage {layers}, "
        f"tensor degree {write_degrees(replica.tensor)}, "
        f"{', '.join([share_words(replica.micro_batches, replica.micro_batch), *at_once])}, "
        f"activations {activations_words(replica)}"
    )


def _share_of(replica: PlacedReplica, sequences: int) -> str:
    """ "Replica 0: 9 micro-batches of 1, 37.5 % of the sequences"."""
    count = len(replica.members)
    several, each = ("s", " each") if count > 1 else ("", "")
    return (
        f"Replica{several} {write_ranges(replica.members)}: {replica.micro_batches} micro-batches "
        f"of {replica.micro_batch}{each}, {100 * count * replica.sequences / sequences:.1f} % of "
        f"the sequences"
    )


def _activations_of_all(plan: Plan) -> str:
    """What its replicas keep and recover, once where all do the same."""
    words = [activations_words(replica) for replica in plan.replicas]
    if len(set(words)) == 1:
        return words[0]
    named = zip(plan.replicas, words, strict=True)
    return "; ".join(f"replica {', '.join(map(str, r.members))}: {text}" for r, text in named)


def in_brief(plan: Plan) -> str:
    """What it is in a few words, beside plans of other jobs."""
    return shapes(plan)


def details(plan: Plan) -> tuple[str, ...]:
    """What the name leaves out."""
    return tuple(map(_details_of, plan.replicas))


def shares(plan: Plan) -> list[str]:
    """What part of a step each replica takes."""
    return [_share_of(replica, plan.job.batch.sequences) for replica in plan.replicas]


def rounds(_: Plan) -> str:
    """How many stages a rank holds: each replica says it."""
    return ""


def activations(_: Plan) -> list[str]:
    """What becomes of them: each replica says it."""
    return []


def reducing_hosts(_: Plan) -> tuple[Hosts, ...]:
    """Of each rank, the hosts of those that reduce its gradients: of no order that words have."""
    return ()


def facts(plan: Plan) -> dict[str, Any]:
    """What replicas say, for JSON: what they differ in stands with each."""
    return {
        **dict.fromkeys(("pipeline", "tensor", "virtual", "layers_per_stage", "activations")),
        "replicas": [_facts_of(plan, replica) for replica in plan.replicas],
    }


def _facts_of(plan: Plan, replica: PlacedReplica) -> dict[str, object]:
    return {
        "count": len(replica.members),
        "numbers": list(replica.members),
        "device_kinds": list(replica.kinds),
        "budget_bytes": [plan.job.budget_of(group[0].kind) for group in replica.groups[0]],
        "pipeline": replica.layout.pipeline,
        "tensor": list(replica.tensor),
        "virtual": replica.layout.virtual,
        "layers_per_stage": list(replica.layers),
        "micro_batch": replica.micro_batch,
        "micro_batch_of_ranks": list(replica.sizes),
        "micro_batches": replica.micro_batches,
        "serves": [share_text(share) for share in replica.serves],
        "ranks_of_places": [list(ranks) for ranks in replica.places],
        "activations": activations_words(replica),
    }


def of_whole_run(plan: Plan) -> dict[str, Any]:
    """Figures of the whole run: the ranks of the largest replica, and the first's cut."""
    return {
        "pipeline": max(replica.ranks for replica in plan.replicas),
        "tensor": max(max(replica.tensor) for replica in plan.replicas),
        "virtual": max(replica.layout.virtual for replica in plan.replicas),
        "layers_per_stage": plan.replicas[0].layers,
        "activations": _activations_of_all(plan),
    }


def replicas(plan: Plan) -> Iterator[str]:
    """Lines of a headline for each sort of replicas."""
    for replica, first_rank in zip(plan.replicas, plan.setup.first_rank, strict=True):
        yield from _lines_of(replica, first_rank)


def _lines_of(replica: PlacedReplica, first_rank: int) -> list[str]:
    """A sort of replicas: how many, its ranks, what they hold, on what, and its share; and a line
    for each stage of several members."""
    ranks = f"rank{'s' * (replica.ranks > 1)} "
    ranks += write_ranges(range(first_rank, first_rank + replica.ranks))
    parts = (
        f"layers per stage {write_list(replica.layers, STAGES)}",
        f"tensor degree {write_degrees(replica.tensor)}",
        f"on {write_kinds(replica.kinds)}",
        share_words(replica.micro_batches, replica.micro_batch),
        *joined_words(replica),
        f"activations {activations_words(replica, first_rank)}",
    )
    count = len(replica.members)
    alike = f"{count} replicas, each like {ranks}" if count > 1 else f"1 replica ({ranks})"
    line = f"{alike}: {'; '.join(parts)}"
    return [line, *_member_lines(replica, first_rank)]


def _member_lines(replica: PlacedReplica, first_rank: int) -> Iterator[str]:
    """ "  stage 1: rank 1 serves 0-5, 7; rank 2 serves 6"."""
    for place, ranks in enumerate(replica.places):
        if len(ranks) > 1:
            stages = write_ranges(range(place, replica.layout.stages, replica.layout.pipeline))
            members = (
                f"rank {first_rank + rank} serves {share_text(replica.serves[rank])}"
                for rank in ranks
            )
            yield f"  stage {stages}: {'; '.join(members)}"
