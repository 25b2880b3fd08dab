"""Faults planted in sound programs of unequal plans, each with the findings that may name it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.verify import Rule


@dataclass(frozen=True)
class Fault:
    """A broken program, and the rules of which a finding must name one."""

    program: Program
    rules: frozenset[Rule]


def ops_of(program: Program, *kinds: Kind) -> list[tuple[int, Lane, int]]:
    """(rank, lane, place) of every op of these kinds."""
    return [
        (rank, lane, place)
        for (rank, lane), actions in program.lanes.items()
        for place, action in enumerate(actions)
        if action.kind in kinds
    ]


def without(program: Program, rank: int, lane: Lane, place: int) -> Program:
    """The program without one op."""
    actions = program.lanes[rank, lane]
    left = (*actions[:place], *actions[place + 1 :])
    return replace(program, lanes={**program.lanes, (rank, lane): left})


CELLS = {
    Kind.F: Rule.MISSING_FORWARD,
    Kind.B: Rule.INCOMPLETE_GRADIENT,
    Kind.I: Rule.READ_BEFORE_WRITE,
    Kind.W: Rule.INCOMPLETE_GRADIENT,
    Kind.SEND_F: Rule.MISSING_SEND,
    Kind.SEND_B: Rule.MISSING_SEND,
    Kind.RECV_F: Rule.MISSING_RECEIVE,
    Kind.RECV_B: Rule.MISSING_RECEIVE,
}


def dropped_cell(program: Program, rng: Random) -> Fault | None:
    """Without one forward, backward, send or receive."""
    place = _any(ops_of(program, *CELLS), rng)
    if place is None:
        return None
    kind = _action(program, place).kind
    rules = {CELLS[kind]}
    if kind in (Kind.B, Kind.W):  # its gradient is reduced at once, and is not there to be read
        rules.add(Rule.READ_BEFORE_WRITE)
    return Fault(without(program, *place), frozenset(rules))


def missing_member(program: Program, rng: Random) -> Fault | None:
    """Without one rank's part in a reduction that other ranks take part in."""
    shared = [
        place
        for place in ops_of(program, Kind.GradSync)
        if _partners(program, place[0], _action(program, place))
    ]
    place = _any(shared, rng)
    if place is None:
        return None
    return Fault(without(program, *place), frozenset({Rule.MISSING_PARTNER}))


def forgotten_member(program: Program, rng: Random) -> Fault | None:
    """Without any reduction of a member that serves no micro-batch."""
    idle = [
        rank
        for rank in range(program.setup.ranks)
        if all(member.serves == () for _, member in program.held_by(rank))
        and any(_partners(program, rank, action) for action in program.lane(rank, Lane.REDUCE))
    ]
    if not idle:
        return None
    lanes = {**program.lanes, (rng.choice(idle), Lane.REDUCE): ()}
    return Fault(replace(program, lanes=lanes), frozenset({Rule.MISSING_PARTNER}))


def opposite_order(program: Program, rng: Random) -> Fault | None:
    """Two ranks that reduce two units in opposite orders."""
    pairs = list(_met_twice(program))
    if not pairs:
        return None
    rank, first = rng.choice(pairs)
    actions = list(program.lanes[rank, Lane.REDUCE])
    actions[first], actions[first + 1] = actions[first + 1], actions[first]
    lanes = {**program.lanes, (rank, Lane.REDUCE): tuple(actions)}
    return Fault(replace(program, lanes=lanes), frozenset({Rule.DEADLOCK}))


FAULTS: dict[str, Callable[[Program, Random], Fault | None]] = {
    "dropped cell": dropped_cell,
    "missing member of a reduction": missing_member,
    "forgotten member with a share of zero": forgotten_member,
    "two peers in opposite order": opposite_order,
}


def _any(places: list[tuple[int, Lane, int]], rng: Random) -> tuple[int, Lane, int] | None:
    return rng.choice(places) if places else None


def _action(program: Program, place: tuple[int, Lane, int]) -> Action:
    rank, lane, number = place
    return program.lanes[rank, lane][number]


def _unit(program: Program, rank: int, action: Action) -> str:
    return dict(program.held_by(rank))[action.stage].units[action.unit].name


def _units(program: Program, rank: int) -> set[str]:
    return {unit.name for _, member in program.held_by(rank) for unit in member.units}


def _partners(program: Program, rank: int, action: Action) -> list[int]:
    """The other ranks that hold the unit of a reduction."""
    if action.kind is not Kind.GradSync:
        return []
    name = _unit(program, rank, action)
    ranks = range(program.setup.ranks)
    return [other for other in ranks if other != rank and name in _units(program, other)]


def _met_twice(program: Program) -> Iterator[tuple[int, int]]:
    """(rank, place) of two neighbouring reductions in which it meets one other rank both times."""
    held = [_units(program, rank) for rank in range(program.setup.ranks)]
    for (rank, lane), actions in program.lanes.items():
        if lane is not Lane.REDUCE:
            continue
        for place, (first, second) in enumerate(pairwise(actions)):
            if not first.kind == second.kind == Kind.GradSync:
                continue
            wanted = {_unit(program, rank, first), _unit(program, rank, second)}
            others = (units for other, units in enumerate(held) if other != rank)
            if len(wanted) == 2 and any(wanted <= units for units in others):
                yield rank, place
