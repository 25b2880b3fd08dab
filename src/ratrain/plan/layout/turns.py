"""In which step of a period each unit's weights are averaged between replicas: as a job asks, in
runs of equal bytes, or hidden behind backward: DreamDDP's division of its order, by a plan's costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ratrain.cost.turns import exposed_of_runs, lengths_of_runs, turns
from ratrain.describe.job import JobSpec
from ratrain.plan.layout.jobs import refuse
from ratrain.program.kind import Kind
from ratrain.program.setup import Setup
from ratrain.program.units import unit_columns
from ratrain.simulate.costs import NO_LINK, Costs, Floats

Turns = tuple[tuple[str, int], ...]
"""Each unit's name with its step."""


def asked_turns(job: JobSpec, setup: Setup, *, tied: bool) -> Turns:
    """The turns that a job asks for, which must be of every unit that is trained; none where it
    leaves them out."""
    asked, steps = dict(job.schedule.average_turns), job.schedule.average_every or 1
    if not asked:
        return ()
    first, *_, last = setup.unit_degrees
    trained = [name for name in setup.unit_degrees if name not in setup.frozen]
    missing = [name for name in trained if name not in asked]
    unknown = [name for name in asked if name not in trained]
    late = [name for name, step in asked.items() if step >= steps]
    unlike = tied and asked.get(first) != asked.get(last)
    copies = f"units {first} and {last} are copies of one matrix, and have different steps"
    faults = (
        (missing, f"unit {' and '.join(missing)} would never be averaged", "give it a step"),
        (unknown, f"no unit {' and '.join(unknown)} is trained", f"use {', '.join(trained)}"),
        (late, f"unit {' and '.join(late)} has a step behind the period", f"use 0 to {steps - 1}"),
        (unlike, copies, "give both one step"),
    )
    refuse(job, (("[schedule] average_turns", what, fix) for is_so, what, fix in faults if is_so))
    return tuple(asked.items())


def equal_turns(setup: Setup, steps: int, *, tied: bool) -> Turns:
    """Runs of backward's order as equal in bytes as can be, on each rank."""
    units = (unit for member in setup.members for unit in member.units)
    size = _largest(setup, (float(unit.gradient_bytes) for unit in units))

    def of_rank(names: list[str]) -> tuple[int, ...]:
        lengths = lengths_of_runs(np.array([size[name] for name in names]))
        return turns(lengths, steps, least_longest=True)

    return turns_by_rank(setup, of_rank, tied=tied)


def turns_by_rank(
    setup: Setup, of_rank: Callable[[list[str]], tuple[int, ...]], *, tied: bool
) -> Turns:
    """The turns of all units, each rank's of the first replica by itself: `of_rank` takes names in
    the order of backward. The second copy of a tied matrix has the turn of the first, whose
    gradient is complete last."""
    found: dict[str, int] = {}
    first, *_, last = setup.unit_degrees
    stages = setup.replicas[0].stages
    for rank in range(setup.replicas[0].ranks):
        names = [
            unit.name
            for stage in reversed(stages)
            for member in stage.members
            if member.rank == rank
            for unit in reversed(member.units)
            if not unit.frozen and not (tied and unit.name == last)
        ]
        found |= dict(zip(names, of_rank(names), strict=True)) if names else {}
    if tied:
        found[last] = found[first]
    return tuple(found.items())


def _largest(setup: Setup, of_units: Iterable[float]) -> dict[str, float]:
    """A figure of each unit's name: the largest of all that hold it."""
    found: dict[str, float] = {}
    names = (unit.name for member in setup.members for unit in member.units)
    for name, figure in zip(names, of_units, strict=True):
        found[name] = max(found.get(name, 0.0), figure)
    return found


def hidden_turns(setup: Setup, costs: Costs, steps: int, *, tied: bool) -> Turns:
    """The division whose averages, each behind its unit's last backward, are exposed least. Where
    replicas differ the slowest counts."""
    computed = _seconds(costs, Kind.B) + _seconds(costs, Kind.R) * unit_columns(setup).recovered
    if setup.split_backward:
        computed = _seconds(costs, Kind.I) + _seconds(costs, Kind.W)
    backward_s = _largest(setup, computed.tolist())
    sync_s = _largest(setup, _seconds(costs, Kind.AverageW).tolist())

    def of_rank(names: list[str]) -> tuple[int, ...]:
        b, c = (np.array([column[name] for name in names]) for column in (backward_s, sync_s))
        return turns(exposed_of_runs(b, c), steps)

    return turns_by_rank(setup, of_rank, tied=tied)


def _seconds(costs: Costs, kind: Kind) -> Floats:
    """What an op of a kind takes alone, for each unit."""
    work = costs.work[kind]
    rate = costs.link_rate_bytes_per_s[np.maximum(work.link, 0)]
    return work.fixed_s + np.where(work.link == NO_LINK, 0.0, work.volume_bytes / rate)
