"""In which step of a period each unit's weights are averaged between replicas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ratrain.cost.turns import Floats, lengths_of_runs, turns
from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.program.replicas import Unit
from ratrain.program.setup import Setup

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
    faults = {
        f"unit {' and '.join(missing)} would never be averaged": (missing, "give it a step"),
        f"no unit {' and '.join(unknown)} is trained": (
            unknown,
            f"use {', '.join(trained)}",
        ),
        f"unit {' and '.join(late)} has a step behind the period": (
            late,
            f"use 0 to {steps - 1}",
        ),
        f"units {first} and {last} are copies of one matrix, and have different steps": (
            tied and asked.get(first) != asked.get(last),
            "give both one step",
        ),
    }
    for what, (is_wrong, fix) in faults.items():
        if is_wrong:
            place = f"{job.path or 'job'} [schedule] average_turns"
            raise SpecError(what, place=place, fix=fix)
    return tuple(asked.items())


def equal_turns(setup: Setup, steps: int, *, tied: bool) -> Turns:
    """Runs of backward's order as equal in bytes as can be, on each rank."""
    size = _largest(setup, lambda g: float(_units(setup)[g].gradient_bytes))
    return turns_by_rank(
        setup,
        lambda names: turns(
            lengths_of_runs(np.array([size[name] for name in names])), steps, least_longest=True
        ),
        tied=tied,
    )


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


def slowest(setup: Setup, of_unit: Floats) -> dict[str, float]:
    """A figure of each unit's name: the largest of all that hold it."""
    return _largest(setup, lambda g: float(of_unit[g]))


def _units(setup: Setup) -> list[Unit]:
    return [unit for member in setup.members for unit in member.units]


def _largest(setup: Setup, of_unit: Callable[[int], float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for g, unit in enumerate(_units(setup)):
        found[unit.name] = max(found.get(unit.name, 0.0), of_unit(g))
    return found
