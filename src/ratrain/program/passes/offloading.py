"""Passes about memory tiers: inputs that wait for backward, optimizers that wait for updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.replicas import Member


def offload_inputs(program: Program) -> Program:
    """Input offload: the inputs of units that are recovered wait for backward in host memory.

    Adds an OffloadInput behind each forward of such a unit, on a lane of its own, and a FetchInput
    ahead of its recovery, on another. Inputs are made in two slots and come back into a few, so
    what the device holds no longer grows with the micro-batches in flight, nor with how far lanes
    drift apart. Safe because recovery and backward read what was fetched, and a slot is taken over
    only after its readers. Units that keep their activations keep their inputs too.
    """

    def offloading(member: Member, _is_last: bool) -> Member:
        return replace(member, offloads=member.recovery.again)

    setup = program.setup.with_members(offloading)

    def copies(rank: int, lane: Lane, _actions: Iterable[Action]) -> Iterator[Action]:
        away = _units_with_input_away(program.with_setup(setup), rank)
        word = Kind.OffloadInput if lane is Lane.OFFLOAD else Kind.FetchInput
        first_use = (Kind.F,) if lane is Lane.OFFLOAD else (Kind.R,)
        for action in program.lane(rank, Lane.COMPUTE):
            if action.kind in first_use and (action.stage, action.unit) in away:
                yield action._replace(kind=word)

    return program.edit("offload-inputs", Lane.OFFLOAD, Lane.FETCH, by=copies, setup=setup)


def offload_optimizer(program: Program, tier: str) -> Program:
    """Optimizer offload: master weights and moments wait for their update in host memory, or on
    disk.

    Adds a FetchOptimizer ahead of each update, on a lane of its own, and a StoreOptimizer behind
    it, on another, both in the order of updates. The device then holds the states of two units
    instead of all, and a step moves each in and out once, however many micro-batches there are.
    Safe because an update reads what was fetched, a fetch reads what the step before stored, and a
    slot is taken over only after its store (and its Save). Fetches of the next step may begin while
    this one's last updates run. In fp32 the weights are their own master, and stay. ZeRO-Offload
    (Ren et al. 2021, arXiv 2101.06840), ZeRO-Infinity (Rajbhandari et al. 2021, arXiv 2104.07857).
    """

    def away(member: Member, _is_last: bool) -> Member:
        return replace(member, optimizer_tier=tier)

    def moves(rank: int, lane: Lane, _actions: Iterable[Action]) -> Iterator[Action]:
        kind = Kind.FetchOptimizer if lane is Lane.LOAD else Kind.StoreOptimizer
        for action in program.lane(rank, Lane.UPDATE):
            if action.kind is Kind.UpdateShard:
                yield action._replace(kind=kind)

    setup = program.setup.with_members(away)
    return program.edit(f"offload-optimizer-{tier}", Lane.LOAD, Lane.STORE, by=moves, setup=setup)


def _units_with_input_away(program: Program, rank: int) -> set[tuple[int, int]]:
    """(stage, unit) of a rank's units whose inputs wait in host memory."""
    return {
        (stage, number)
        for stage, member in program.held_by(rank)
        for number, unit in enumerate(member.units)
        if member.offloads and unit.recoverable and (stage, number) != (0, 0)
    }
