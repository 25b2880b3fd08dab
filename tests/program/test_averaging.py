"""Replicas that average their weights once a period, in any order, tied or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from made import Case, cases, replica, small

from ratrain.errors import ProgramError
from ratrain.program.actions import Action
from ratrain.program.kind import Cost, Kind, Lane, Partners, Scope
from ratrain.program.program import Program
from ratrain.program.rules import declare
from ratrain.program.setup import Accumulation, Averages, Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.text import read_text, write_text
from ratrain.program.verify import Rule, verify

AVERAGED = (Kind.AverageW, Kind.AverageCopy)
ORDERS = st.sampled_from(list(filter(None, Averages)))


def names_of(setup: Setup) -> list[str]:
    return list(setup.unit_degrees)


def with_copies(setup: Setup) -> Setup:
    """The setup whose units have a size of a copy of their weights."""
    return setup.with_members(
        lambda member, _: replace(
            member, units=tuple(replace(unit, copy_bytes=40) for unit in member.units)
        )
    )


def averaged(
    case: Case, steps: int, order: Averages = Averages.LOCAL_SGD, seed: int = 0
) -> Program:
    """A random case whose replicas train alone for some steps; `seed`: of units' turns."""
    choices = replace(
        case.choices,
        accumulation=Accumulation.LOCAL,
        bucket_bytes=None,
        clip=False,
        error_feedback=0,
        optimizer_tier="",
        average_steps=steps,
        averages=order,
        average_turns=turns_drawn(case.setup, steps, seed, tied=case.choices.tie),
        outer=order is Averages.EARLY_START and bool(seed % 2),
        average_wire="int8" if order is Averages.EARLY_START and seed % 4 == 3 else "",
    )
    return apply_strategy(replace(case.strategy, sharding=0), with_copies(case.setup), choices)


def turns_drawn(setup: Setup, steps: int, seed: int, *, tied: bool) -> tuple[tuple[str, int], ...]:
    """A step for each unit; copies of a tied matrix have one."""
    names = names_of(setup)
    drawn = np.random.default_rng(seed).integers(0, steps, len(names)).tolist()
    turn = dict(zip(names, drawn, strict=True))
    if tied:
        turn[names[-1]] = turn[names[0]]
    return tuple(turn.items())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.booleans().flatmap(lambda tied: cases(4, tied=tied)), st.integers(1, 3), ORDERS,
    st.integers(0, 99),
)  # fmt: skip
def test_any_order_with_any_passes_is_sound_over_a_period(
    case: Case, steps: int, order: Averages, seed: int
) -> None:
    program = averaged(case, steps, order, seed)
    verdict = verify(program)
    assert verdict.sound, [finding.message for finding in verdict.findings[:2]]
    assert read_text(write_text(program)) == program
    assert {action.kind for action in program.lane(0, Lane.REDUCE)} <= {Kind.TieSync}
    assert {action.kind for action in program.lane(0, Lane.AVERAGE)} <= set(AVERAGED)


@pytest.mark.parametrize("name", ["1f1b", "ratrain"])
def test_a_tied_matrix_is_summed_in_every_step_and_averaged_in_the_last(name: str) -> None:
    setup = Setup((replica((1, 1), 4, 3, ends=True),))
    program = apply_strategy(
        replace(strategy(name), sharding=0), setup, Choices(tie=True, average_steps=2)
    )
    for rank in range(2):
        reduced, averaged = (
            [(action.kind, action.step) for action in program.lane(rank, lane)]
            for lane in (Lane.REDUCE, Lane.AVERAGE)
        )
        assert reduced == [(Kind.TieSync, 0), (Kind.TieSync, 1)]
        assert averaged == [(Kind.AverageW, 1), (Kind.AverageW, 1)]
    assert verify(program).sound


def test_a_step_whose_tied_copies_are_not_summed_is_told() -> None:
    setup = Setup((replica((1, 1), 4, 3, ends=True),))
    chosen = replace(strategy("ratrain"), sharding=0)
    program = apply_strategy(chosen, setup, Choices(tie=True, average_steps=2))
    lanes = {
        (rank, lane): tuple(a for a in actions if (a.kind, a.step) != (Kind.TieSync, 1))
        for (rank, lane), actions in program.lanes.items()
    }
    rules = {finding.rule for finding in verify(replace(program, lanes=lanes)).findings}
    assert Rule.INCOMPLETE_GRADIENT in rules


# ---- what replicas train apart they average, all of it, once --------------------------------


def together(program: Program, rank: int, lane: Lane, place: int) -> list[tuple[int, Lane, int]]:
    """(rank, lane, place) of all ops that happen together with one."""
    table = program.table
    rows = np.flatnonzero((table.rank == rank) & (table.lane == lane))
    group = table.group[rows[place]]
    row_of = [rows[place]] if group < 0 else np.flatnonzero(table.group == group).tolist()
    found: list[tuple[int, Lane, int]] = []
    for row in row_of:
        of_lane = (table.rank == table.rank[row]) & (table.lane == table.lane[row])
        place = int(np.searchsorted(np.flatnonzero(of_lane), row))
        found.append((int(table.rank[row]), Lane(int(table.lane[row])), place))
    return found


def edited(
    program: Program, places: list[tuple[int, Lane, int]], by: Callable[[Action], list[Action]]
) -> Program:
    """The program with each op at these places replaced."""
    lanes = {key: list(actions) for key, actions in program.lanes.items()}
    for rank, lane, place in sorted(places, reverse=True):
        lanes[rank, lane][place : place + 1] = by(lanes[rank, lane][place])
    return replace(program, lanes={key: tuple(actions) for key, actions in lanes.items()})


def twice(action: Action) -> list[Action]:
    return [action, action]


def never(_: Action) -> list[Action]:
    return []


@st.composite
def synchronised(draw: st.DrawFn) -> Program:
    """Any program of replicas: with reduced gradients, or with averages, from the registries."""
    tied = draw(st.booleans())
    case, steps = draw(cases(4, tied=tied)), draw(st.integers(0, 3))
    return averaged(case, steps, draw(ORDERS), draw(st.integers(0, 9))) if steps else case.program


@pytest.mark.slow
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(synchronised(), st.data())
def test_a_synchronising_op_that_is_dropped_or_doubled_is_found_on_one_rank_or_on_all(
    program: Program, data: st.DataObject
) -> None:
    assert verify(program).sound
    ops = [
        (rank, lane, place)
        for (rank, lane), actions in program.lanes.items()
        for place, action in enumerate(actions)
        if action.kind.synchronises
    ]
    assume(ops)
    op = data.draw(st.sampled_from(ops))
    kind = program.lanes[op[0], op[1]][op[2]].kind
    everywhere = [place for place in together(program, *op) if place[1] is op[1]]
    places = data.draw(st.sampled_from([[op], everywhere]))
    by = data.draw(st.sampled_from([never, twice]))
    try:
        verdict = verify(edited(program, places, by))
    except ProgramError:
        return  # it cannot even be bound
    assert not verdict.sound, (kind, by.__name__, len(places))
    alone = program.table.states.units.holders[program.table.unit].max() == 1
    if kind in (Kind.AverageW, Kind.AverageCopy):
        found = [f for f in verdict.findings if f.rule is Rule.INCOMPLETE_SYNC]
        assert {f.rank for f in found} == {rank for rank, _, _ in places} and not alone
        assert all(f"on rank {f.rank} is " in f.message for f in found)


def test_an_average_that_no_rank_makes_is_named_with_its_unit_and_the_fix() -> None:
    setup = Setup((replica((1, 1), 4, 2, ends=True),))
    program = apply_strategy(replace(strategy("1f1b"), sharding=0), setup, Choices(average_steps=3))
    lane = program.lanes[1, Lane.AVERAGE]
    for change, words in (
        (lane[1:], "is never averaged in a period of 3: add an AverageW of it"),
        ((lane[0], *lane), "is averaged 2 times in a period of 3: keep the last one"),
        (
            (lane[0]._replace(step=1), *lane[1:]),
            "is averaged in step 1 and updated in step 2: average it in the last step",
        ),
    ):
        verdict = verify(replace(program, lanes={**program.lanes, (1, Lane.AVERAGE): change}))
        found = [f for f in verdict.findings if f.rule is Rule.INCOMPLETE_SYNC]
        assert len(found) == 1 and found[0].rank == 1
        assert found[0].message.startswith("unit [") and words in found[0].message, found


@pytest.mark.parametrize("order", ["dreamddp", "early-start"])
def test_a_unit_that_misses_its_turn_or_has_two_and_a_tied_copy_in_another_step_are_told(
    order: str,
) -> None:
    setup = with_copies(Setup((replica((1, 1), 4, 2, ends=True),)))
    turns = {"e": 2, "0": 1, "1": 0, "h": 2}
    choices = Choices(
        tie=True,
        average_steps=3,
        averages=Averages(order),
        average_turns=tuple(turns.items()),
    )
    chosen = replace(strategy("1f1b"), sharding=0)
    program = apply_strategy(chosen, setup, choices)
    assert verify(program).sound
    lane = [action for action in program.lanes[0, Lane.AVERAGE] if action.kind is not Kind.TieSync]
    assert [(action.unit, action.step) for action in lane] == [(1, 1), (0, 2)]
    other = dict(turns, h=1)
    apart = apply_strategy(chosen, setup, replace(choices, average_turns=tuple(other.items())))
    found = {f.rank: f for f in verify(apart).findings}
    assert set(found) == {0, 1} and all(f.rule is Rule.INCOMPLETE_SYNC for f in found.values())
    assert "is averaged in step 2, and the tied copy in another" in found[0].message
    at = program.lanes[0, Lane.AVERAGE].index(lane[0])
    everywhere = together(program, 0, Lane.AVERAGE, at)
    for by, words in ((never, "is never averaged in a period"), (twice, "averaged 2 times")):
        changed = edited(program, [place for place in everywhere if place[1] is Lane.AVERAGE], by)
        findings = verify(changed).findings
        assert any(f.rule is Rule.INCOMPLETE_SYNC and words in f.message for f in findings)


def test_weights_that_are_written_between_their_copy_and_the_update_are_told() -> None:
    """What is averaged would then overwrite what was learnt since the copy."""
    setup = with_copies(Setup((replica((2,), 2, 2, ends=True),)))
    turns = tuple((name, 0) for name in names_of(setup))
    choices = Choices(average_steps=2, averages=Averages.EARLY_START, average_turns=turns)
    program = apply_strategy(replace(strategy("1f1b"), sharding=0), setup, choices)
    lane = program.lanes[0, Lane.UPDATE]
    assert [action.kind for action in lane[:4]] == [Kind.CopyW] * 4
    late = (*lane[1:8], lane[0], *lane[8:])
    findings = verify(replace(program, lanes={**program.lanes, (0, Lane.UPDATE): late})).findings
    assert findings, "an update waits for a mean whose copy is behind it"


def test_a_reduction_that_no_rank_makes_is_named_as_such() -> None:
    program = small("1f1b")
    lane = program.lanes[0, Lane.REDUCE]
    fewer = tuple(action for action in lane if (action.kind, action.unit) != (Kind.GradSync, 2))
    findings = verify(replace(program, lanes={**program.lanes, (0, Lane.REDUCE): fewer})).findings
    assert any("before the gradients of all replicas are in it" in f.message for f in findings)


def test_a_kind_of_one_s_own_that_averages_weights_is_counted() -> None:
    own = declare(
        "MyAverage", Lane.AVERAGE, Scope.UNIT, Kind.AverageW.uses, partners=Partners.HOLDERS,
        cost=Cost.AVERAGE, renews=("optimizer", "view"), synchronises=("optimizer", "view"),
    )  # fmt: skip
    try:
        setup = Setup((replica((1, 1), 4, 2, ends=True),))
        program = apply_strategy(
            replace(strategy("1f1b"), sharding=0), setup, Choices(average_steps=2)
        )
        lanes = {
            key: tuple(a._replace(kind=own) if a.kind is Kind.AverageW else a for a in actions)
            for key, actions in program.lanes.items()
        }
        assert verify(replace(program, lanes=lanes)).sound
        lanes[0, Lane.AVERAGE] = lanes[0, Lane.AVERAGE][1:]
        found = verify(replace(program, lanes=lanes)).findings
        assert Rule.INCOMPLETE_SYNC in {finding.rule for finding in found}
    finally:
        own.forget()
