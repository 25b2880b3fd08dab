"""Passes about who owns what: optimizer, gradients and views divided over the replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ratrain.program.actions import Action, Kind, Lane
from ratrain.program.passes.state_pipeline import completion_order
from ratrain.program.program import Program
from ratrain.program.setup import Accumulation


def shard_states(program: Program, level: int) -> Program:
    """Sharded states: 1 divides the optimizer over the replicas, 2 gradients too, 3 views too.

    Levels 1 and 2 add one PrefetchW a unit, after all updates; level 3 gathers a unit's view
    for every use instead. Safe because each replica updates the part that it owns from a
    reduced gradient, and a view is complete (PrefetchW or Gather) before compute reads it.
    Rajbhandari et al. 2020, arXiv 1910.02054. Level 2 saves memory over level 1 only together
    with sharded accumulation.
    """
    setup = replace(program.setup, sharding=level)

    def gathers(rank: int, _lane: Lane, _actions: Iterable[Action]) -> Iterator[Action]:
        if setup.gathers_per_use:
            yield from _gathers_of_uses(program.lane(rank, Lane.COMPUTE))
        elif setup.gathers:
            following = {Kind.AllSynced: Kind.AllUpdated, Kind.UpdateShard: Kind.PrefetchW}
            for action in program.lane(rank, Lane.UPDATE):
                if action.kind in following:
                    yield action._replace(kind=following[action.kind])

    return program.edit(f"shard-states-{level}", Lane.GATHER, by=gathers, setup=setup)


def accumulate_sharded(program: Program) -> Program:
    """Sharded accumulation: a gradient is reduced into its owners' shards every micro-batch.

    Replaces each unit's one GradSync by one a micro-batch, behind that micro-batch's backward.
    No rank then holds a whole accumulated gradient; the bytes sent grow with the number of
    micro-batches. Safe because addition into a shard goes in the order of micro-batches.
    """
    if not program.setup.reduces:
        return program
    setup = replace(program.setup, accumulation=Accumulation.SHARDED)
    sharded = program.with_setup(setup)

    def each(rank: int, _lane: Lane, _actions: Iterable[Action]) -> Iterator[Action]:
        blocks: dict[tuple[int, int], list[int]] = {}
        for stage, unit, micro_batch in completion_order(sharded, rank):
            blocks.setdefault((stage, micro_batch), []).append(unit)
        for (stage, micro_batch), units in blocks.items():
            yield Action(Kind.AllBackward, stage, 0, micro_batch)
            for unit in units:
                yield Action(Kind.GradSync, stage, unit, micro_batch)

    return sharded.edit("accumulate-sharded", Lane.REDUCE, by=each, setup=setup)


def _gathers_of_uses(compute: Iterable[Action]) -> Iterator[Action]:
    """One Gather ahead of each forward, and one ahead of each backward or the recovery before."""
    gathered: set[tuple[int, int, int]] = set()
    for kind, stage, unit, micro_batch in compute:
        if kind is Kind.F:
            yield Action(Kind.Gather_F, stage, unit, micro_batch)
        elif kind in (Kind.R, Kind.B, Kind.I) and (stage, unit, micro_batch) not in gathered:
            gathered.add((stage, unit, micro_batch))
            yield Action(Kind.Gather_B, stage, unit, micro_batch)
