"""Passes about who owns what: optimizer, gradients and views divided over the replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.passes.state_pipeline import completion_order
from ratrain.program.program import Program
from ratrain.program.setup import Accumulation


def shard_states(program: Program, level: int, *, once: bool = False) -> Program:
    """Sharded states: 1 divides the optimizer over the replicas, 2 gradients too, 3 views too.
    `once`: `gather_once` follows, which replicas of unequal stages or shares need.

    Levels 1 and 2 add one PrefetchW a unit, after all updates; level 3 gathers a unit's view
    for every use instead. Safe because each replica updates the part that it owns from a
    reduced gradient, and a view is complete (PrefetchW or Gather) before compute reads it.
    Rajbhandari et al. 2020, arXiv 1910.02054. Level 2 saves memory over level 1 only together
    with sharded accumulation.
    """
    setup = replace(program.setup, sharding=level, gathers_per_pass=once and level == 3)

    def gathers(rank: int, _lane: Lane, _actions: Iterable[Action]) -> Iterator[Action]:
        is_reduced = _units(program, rank, program.setup.is_reduced)
        if setup.gathers_per_use:
            uses = _gathers_of_uses(program.lane(rank, Lane.COMPUTE))
            yield from filter(_units(program, rank, setup.is_shared), uses)
        elif setup.gathers:
            for action in program.lane(rank, Lane.UPDATE):
                if action.kind is Kind.AllSynced:
                    yield action._replace(kind=Kind.AllUpdated)
                elif action.kind is Kind.UpdateShard and is_reduced(action):
                    yield action._replace(kind=Kind.PrefetchW)

    return program.edit(f"shard-states-{level}", Lane.GATHER, by=gathers, setup=setup)


def accumulate_sharded(program: Program) -> Program:
    """Sharded accumulation: a gradient is reduced into its owners' shards every micro-batch.

    Replaces each unit's one GradSync by one a micro-batch, behind that micro-batch's backward.
    No rank then holds a whole accumulated gradient; the bytes sent grow with the number of
    micro-batches. Safe because addition into a shard goes in the order of micro-batches. Where
    several micro-batches go through a stage layer by layer, each GradSync follows its own layer:
    the next micro-batch's backward needs the place of the gradient before the stage is done.
    """
    if not program.setup.reduces:
        return program
    setup = replace(program.setup, accumulation=Accumulation.SHARDED)
    sharded = program.with_setup(setup)

    def each(rank: int, _lane: Lane, _actions: Iterable[Action]) -> Iterator[Action]:
        is_reduced = _units(program, rank, program.setup.is_reduced)
        ended = [
            (stage, micro_batch, unit)
            for stage, unit, micro_batch in completion_order(sharded, rank)
            if is_reduced(Action(Kind.GradSync, stage, unit, micro_batch))
        ]
        runs = [(key, list(run)) for key, run in groupby(ended, key=lambda end: end[:2])]
        times = Counter(key for key, _ in runs)
        for (stage, micro_batch), run in runs:
            if times[stage, micro_batch] == 1:  # a micro-batch's backwards follow each other
                yield Action(Kind.AllBackward, stage, 0, micro_batch)
            for _, _, unit in run:
                yield Action(Kind.GradSync, stage, unit, micro_batch)

    return sharded.edit("accumulate-sharded", Lane.REDUCE, by=each, setup=setup)


def gather_once(program: Program) -> Program:
    """Gather once a pass: at level 3, one gather of a view serves every micro-batch of a pass.

    Takes all but the first Gather_F, and all but the first Gather_B, of a unit away. A view stays
    until the last micro-batch of the pass has used it, so it pays under orders that take all
    micro-batches of a stage together (breadth-first): two gathers and one reduction a unit,
    however many micro-batches there are (pipeline-efficient ZeRO, arXiv 2507.10392). Safe because
    every use reads the same version of the view. A slot is taken over after its last reader.
    """
    setup = replace(program.setup, gathers_per_pass=True)

    def first_of_pass(_rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        gathered: set[tuple[Kind, int, int]] = set()
        for action in actions:
            key = action.kind, action.stage, action.unit
            if action.kind not in (Kind.Gather_F, Kind.Gather_B):
                yield action
            elif key not in gathered:
                gathered.add(key)
                yield action

    return program.edit("gather-once", Lane.GATHER, by=first_of_pass, setup=setup)


def _units(program: Program, rank: int, chosen: Callable[[str], bool]) -> Callable[[Action], bool]:
    """Whether an action of a rank is about a unit with a chosen name."""
    held = dict(program.held_by(rank))
    return lambda action: chosen(held[action.stage].units[action.unit].name)


def _gathers_of_uses(compute: Iterable[Action]) -> Iterator[Action]:
    """One Gather ahead of each forward, and one ahead of each backward or the recovery before."""
    gathered: set[tuple[int, int, int]] = set()
    for kind, stage, unit, micro_batch, _ in compute:
        if kind is Kind.F:
            yield Action(Kind.Gather_F, stage, unit, micro_batch)
        elif kind in (Kind.R, Kind.B, Kind.I) and (stage, unit, micro_batch) not in gathered:
            gathered.add((stage, unit, micro_batch))
            yield Action(Kind.Gather_B, stage, unit, micro_batch)
