"""Passes about gradients, updates and views: from one lump at the step's end to a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ratrain.program.actions import NONE, Action
from ratrain.program.columns import KIND, MICRO_BATCH, STAGE, UNIT, Rows, as_columns
from ratrain.program.kind import Kind, Lane, kinds_where
from ratrain.program.program import Program

TRANSIT_SLOTS = 2
"""Gradients on their way to their owners at once: one leaving, one being filled."""


def layerwise_state_pipeline(
    program: Program, bucket_bytes: int | None = None, *, backward_sends: bool = False
) -> Program:
    """Layer-wise state pipeline: a layer's GradSync starts when its gradient is complete.

    Moves every GradSync from after the last backward of the rank (or, with sharded
    accumulation, of the micro-batch) to behind its own layer's, by taking the AllBackward
    barrier away and putting GradSyncs in the order in which gradients complete. Safe because a
    GradSync reads the version of the gradient that holds all its micro-batches, and nothing
    else. Unreduced gradients of sharded accumulation then pass through two slots; with
    `bucket_bytes` these are of that size. With `backward_sends` a GradSync happens together with
    its backward, which fills the one bucket while the other leaves. Safe because both lanes have
    their ops in one order, so that a lane never waits for a partner behind another.
    """
    setup = replace(program.setup, transit_slots=TRANSIT_SLOTS, bucket_bytes=bucket_bytes)
    if backward_sends and setup.per_micro_batch:
        setup = replace(setup, backward_sends=True)

    def reorder(rank: int, _lane: Lane, actions: Iterable[Action]) -> list[Action]:
        syncs = [action for action in actions if action.kind is Kind.GradSync]
        if not syncs:
            return []
        place = {key: turn for turn, key in enumerate(completion_order(program, rank))}
        return sorted(syncs, key=lambda a: place[a.stage, a.unit, a.micro_batch])

    return program.edit("layerwise-state-pipeline", Lane.REDUCE, by=reorder, setup=setup)


def update_prefetch(program: Program) -> Program:
    """Update-prefetch: shards are updated as their gradients arrive, and the next step's views
    are gathered in forward access order, across the step boundary.

    Takes the barriers AllSynced, AllUpdated and AllReady away, so that the next step's first
    forwards start while later views still arrive. Safe because each forward reads the new
    version of its own view, PrefetchW overwrites a view only after its last reader, and each
    update reads its own reduced gradient. Needs the layer-wise state pipeline.
    """

    def without_barriers(rank: int, lane: Lane, actions: Iterable[Action]) -> list[Action]:
        kept = [action for action in actions if not action.kind.is_barrier]
        if lane is not Lane.UPDATE:
            return kept
        last = {key[:2]: turn for turn, key in enumerate(completion_order(program, rank))}
        clips = [action for action in kept if action.kind is Kind.ClipNorm]
        shards = [action for action in kept if action.kind is Kind.UpdateShard]
        return clips + sorted(shards, key=lambda action: last[action.stage, action.unit])

    def without_ready(_rank: int, rows: Rows) -> Rows:
        return rows[~kinds_where("is_barrier")[rows[:, KIND]]]

    program = program.edit("update-prefetch", Lane.UPDATE, Lane.GATHER, by=without_barriers)
    return program.edit_rows("", Lane.COMPUTE, by=without_ready)


def completion_order(program: Program, rank: int) -> list[tuple[int, int, int]]:
    """(stage, unit, micro-batch) of a rank's gradients in the order in which compute ends them.

    With local accumulation a unit's gradient ends once, with its last micro-batch, and the
    micro-batch is NONE (-1). Units without a micro-batch come first, the last of them ahead.
    """
    rows = as_columns(program.lanes).rows_of((rank, Lane.COMPUTE))
    made = rows[kinds_where("adds_gradient")[rows[:, KIND]]][:, [STAGE, UNIT, MICRO_BATCH]]
    if not program.setup.per_micro_batch:
        backwards = made[::-1]
        units = backwards[:, 0] * (int(made[:, 1].max(initial=0)) + 1) + backwards[:, 1]
        last = np.unique(units, return_index=True)[1]
        made = backwards[np.sort(last)[::-1]]
        made[:, 2] = NONE
    ended = [(stage, unit, micro_batch) for stage, unit, micro_batch in made.tolist()]
    return ended if program.setup.per_micro_batch else [*_never_made(program, rank), *ended]


def _never_made(program: Program, rank: int) -> list[tuple[int, int, int]]:
    """(stage, unit, NONE) of a rank's units that compute makes no gradient for: in the order in
    which other members of their stages end theirs."""
    replica = program.setup.replicas[program.setup.replica_of(rank)]
    return [
        (stage, unit, NONE)
        for stage, member in reversed(program.held_by(rank))
        if not replica.serves(member)
        for unit in reversed(range(len(member.units)))
    ]
