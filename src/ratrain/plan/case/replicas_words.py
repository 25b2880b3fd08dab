"""Replicas that differ, in words."""

from __future__ import annotations

from ratrain.describe.ranges import RANKS, STAGES, write_degrees, write_list, write_ranges
from ratrain.describe.units import counted
from ratrain.plan.case.layout_words import recovery_words
from ratrain.plan.file.uneven import UnevenPlan, UnevenReplica


def shapes_words(plan: UnevenPlan) -> str:
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


def joined_words(replica: UnevenReplica) -> list[str]:
    """How many sequences its ranks compute at once, where they differ in that; else nothing."""
    if not replica.joined:
        return []
    return [f"sequences at once per rank {write_list(replica.sizes, RANKS)}"]


def activations_words(replica: UnevenReplica, first_rank: int = 0) -> str:
    """What a replica keeps and recovers: "kept on every stage". Where stages have several members
    that differ, what its ranks do, numbered from `first_rank`."""
    if not replica.has_members or len(set(replica.recovery)) == 1:
        return recovery_words(replica.recovery)
    return recovery_words(replica.recovery, RANKS, first_rank)


def plan_words(plan: UnevenPlan) -> str:
    """What tells a plan of replicas that differ from others, in one line."""
    return " + ".join(map(_replica_words, plan.replicas))


def _replica_words(replica: UnevenReplica) -> str:
    """ "2 x 4, 2 layers on new, old with 8 micro-batches of 2 sequences"."""
    layers = replica.layout.layers
    assert not isinstance(layers, str)  # a plan gives numbers
    times = f"{len(replica.members)} x " if len(replica.members) > 1 else ""
    tensor = f", tensor {write_degrees(replica.tensor)}" if max(replica.tensor) > 1 else ""
    sizes = f", {write_list(replica.sizes, STAGES)} at once" if replica.joined else ""
    members = " members" if replica.has_members else ""
    return (
        f"{times}{write_list(layers, STAGES)} layers on {write_list(replica.kinds, STAGES)}"
        f"{members}{tensor} with {share_words(replica.micro_batches, replica.micro_batch)}{sizes}"
    )


def cuts_words(plan: UnevenPlan) -> str:
    """The layers of each replica's stages: "5 + 2 + 1 layers | 8 layers"."""
    replicas = [replica for replica in plan.replicas for _ in replica.members]
    return " | ".join(_cut(replica) for replica in replicas[:8]) + " | ..." * (len(replicas) > 8)


def _cut(replica: UnevenReplica) -> str:
    """ "8 layers" or "5 + 2 + 1 layers" of a replica."""
    return f"{' + '.join(map(str, replica.layout.layers))} layers"


def replica_details(replica: UnevenReplica) -> str:
    """Its numbers, layers, degrees, share and activations."""
    layers = write_list(tuple(replica.layout.layers), STAGES)
    at_once = joined_words(replica)
    return (
        f"replica {write_ranges(replica.members)}: layers per stage {layers}, "
        f"tensor degree {write_degrees(replica.tensor)}, "
        f"{', '.join([share_words(replica.micro_batches, replica.micro_batch), *at_once])}, "
        f"activations {activations_words(replica)}"
    )


def part_words(replica: UnevenReplica, sequences: int) -> str:
    """ "Replica 0: 9 micro-batches of 1, 37.5 % of the sequences"."""
    count = len(replica.members)
    several, each = ("s", " each") if count > 1 else ("", "")
    return (
        f"Replica{several} {write_ranges(replica.members)}: {replica.micro_batches} micro-batches "
        f"of {replica.micro_batch}{each}, {100 * count * replica.sequences / sequences:.1f} % of "
        f"the sequences"
    )


def activations_of_all(plan: UnevenPlan) -> str:
    """What its replicas keep and recover, once where all do the same."""
    words = [activations_words(replica) for replica in plan.replicas]
    if len(set(words)) == 1:
        return words[0]
    named = zip(plan.replicas, words, strict=True)
    return "; ".join(f"replica {', '.join(map(str, r.members))}: {text}" for r, text in named)
