"""Stages whose devices share out micro-batches among themselves, as stages of several members."""

from __future__ import annotations

from collections.abc import Sequence

from ratrain.describe.ranges import write_ranges
from ratrain.plan.file import Mode, PlanMember, PlanStage


def dealt(shares: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """For each member so many micro-batches, numbered over all, each with its own spread evenly:
    the next one goes to the member that is the farthest behind its share."""
    served: list[list[int]] = [[] for _ in shares]
    for number in range(sum(shares)):
        behind = [
            (len(theirs) + 0.5) / share if share else float("inf")
            for theirs, share in zip(served, shares, strict=True)
        ]
        served[behind.index(min(behind))].append(number)
    return tuple(map(tuple, served))


def member_stage(
    groups: Sequence[Sequence[int]],
    served: Sequence[Sequence[int]],
    *,
    layers: int,
    micro_batch: int,
    recovery: Mode,
    sharding: int,
) -> PlanStage:
    """A stage that tensor groups of devices hold together, each with what it serves."""
    if len(groups) == 1:
        return PlanStage(
            devices=write_ranges(groups[0]),
            tensor=len(groups[0]),
            layers=layers,
            micro_batch=micro_batch,
            recovery=recovery,
            sharding=sharding,
        )
    members = tuple(
        PlanMember(write_ranges(group), len(group), write_ranges(theirs), recovery)
        for group, theirs in zip(groups, served, strict=True)
    )
    return PlanStage(layers=layers, micro_batch=micro_batch, sharding=sharding, members=members)
