"""Replicas at sites: inside one gradients are added up, between them owners average weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import Case, cases, replica
from test_averaging import turns_drawn, with_copies

from ratrain.errors import ProgramError
from ratrain.program.actions import Action
from ratrain.program.between import average_rounds, between_sites
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.replicas import Stage
from ratrain.program.setup import Accumulation, Averages, Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.text import read_text, write_text
from ratrain.program.units import Bools
from ratrain.program.verify import Rule, verify

BY_TURNS = st.sampled_from([Averages.DREAMDDP, Averages.EARLY_START])


def at_sites(setup: Setup, sites: int) -> Setup:
    """Each site with all replicas of a setup, whose units have a size of a copy."""
    replicas = [replace(r, site=site) for site in range(sites) for r in setup.replicas]
    return with_copies(replace(setup, replicas=tuple(replicas)))


def averaged(case: Case, sites: int, steps: int, order: Averages, seed: int) -> Program:
    """A random case at several sites."""
    setup = at_sites(case.setup, sites)
    alone = setup.data == sites
    sharded = case.choices.accumulation is Accumulation.SHARDED and not alone
    choices = replace(
        case.choices,
        accumulation=case.choices.accumulation if sharded else Accumulation.LOCAL,
        bucket_bytes=case.choices.bucket_bytes if sharded else None,
        clip=False,
        error_feedback=0,
        optimizer_tier="",
        average_steps=steps,
        averages=order,
        average_turns=turns_drawn(setup, steps, seed, tied=case.choices.tie),
        outer=order is Averages.EARLY_START and bool(seed % 2),
        average_wire="int8" if order is Averages.EARLY_START and seed % 4 == 3 else "",
    )
    level = 0 if alone else case.strategy.sharding
    return apply_strategy(replace(case.strategy, sharding=level), setup, choices)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.booleans().flatmap(lambda tied: cases(3, tied=tied)), st.integers(1, 3),
    st.integers(1, 3), BY_TURNS, st.integers(0, 99),
)  # fmt: skip
def test_any_layout_inside_sites_with_any_passes_is_sound_over_a_period(
    case: Case, sites: int, steps: int, order: Averages, seed: int
) -> None:
    program = averaged(case, sites, steps, order, seed)
    verdict = verify(program)
    assert verdict.sound, [finding.message for finding in verdict.findings[:2]]
    assert read_text(write_text(program)) == program
    table, units = program.table, program.table.states.units
    averages = np.isin(table.kind, [Kind.AverageW, Kind.AverageCopy])
    site = np.array([r.site for r in program.setup.replicas])[units.replica[table.unit]]
    for op in np.flatnonzero(averages & (table.group >= 0)).tolist():
        assert set(site[table.group == table.group[op]]) == set(range(sites))
    for op in np.flatnonzero((table.kind == Kind.GradSync) & (table.group >= 0)).tolist():
        assert len(set(site[table.group == table.group[op]])) == 1


def test_one_replica_a_site_is_the_program_of_replicas_that_train_alone() -> None:
    chosen = replace(strategy("ratrain"), sharding=0)
    choices = Choices(
        average_steps=2,
        averages=Averages.EARLY_START,
        average_turns=(("e", 0), ("0", 1), ("1", 0), ("h", 1)),
    )
    alone = with_copies(Setup((replica((1, 1), 4, 1, ends=True),) * 2))
    sites = replace(alone, replicas=tuple(replace(r, site=n) for n, r in enumerate(alone.replicas)))
    assert (
        apply_strategy(chosen, sites, choices).lanes == apply_strategy(chosen, alone, choices).lanes
    )


@pytest.mark.parametrize("level", range(4))
def test_a_unit_that_one_site_forgets_to_average_is_told(level: int) -> None:
    setup = at_sites(Setup((replica((2, 2), 4, 2, ends=True),)), 2)
    choices = Choices(
        average_steps=2,
        averages=Averages.DREAMDDP,
        average_turns=turns_drawn(setup, 2, 1, tied=False),
    )
    program = apply_strategy(replace(strategy("ratrain"), sharding=level), setup, choices)
    assert verify(program).sound
    assert program.lane(0, Lane.AVERAGE), "the planted fault takes one away"
    fewer = {**program.lanes, (0, Lane.AVERAGE): program.lane(0, Lane.AVERAGE)[1:]}
    rules = {finding.rule for finding in verify(replace(program, lanes=fewer)).findings}
    assert Rule.INCOMPLETE_SYNC in rules


def test_an_owner_keeps_copies_and_outer_states_of_its_part_alone() -> None:
    setup = at_sites(Setup((replica((2,), 4, 4, ends=True),)), 2)
    choices = Choices(
        average_steps=1,
        averages=Averages.EARLY_START,
        average_turns=turns_drawn(setup, 1, 1, tied=False),
        outer=True,
    )
    for level, part in ((0, 1), (2, 4)):
        program = apply_strategy(replace(strategy("ratrain"), sharding=level), setup, choices)
        states = program.table.states
        for family, copies in (("averaged", 1), ("outer", 2)):
            held = states.by_name[family]
            sizes = set(states.size_bytes[held.start : held.start + held.count].tolist())
            assert sizes == {copies * 40 // part}


TWO_AND_THREE = replica((1, 1), 2, 2), replica((1, 1), 2, 3)
SITES = st.lists(
    st.tuples(st.sampled_from([(4,), (2, 2), (1, 3), (1, 2, 1)]), st.integers(1, 3)),
    min_size=2,
    max_size=3,
)


def unlike_sites(sites: Sequence[tuple[tuple[int, ...], int]], micro_batches: int = 4) -> Setup:
    """Of each site the layers of its replicas' stages, and how many replicas."""
    replicas = [
        replace(replica(cut, micro_batches + site, count, ends=True), site=site)
        for site, (cut, count) in enumerate(sites)
    ]
    return with_copies(Setup(tuple(replicas)))


def require_sound_and_once(program: Program) -> Bools:
    """Its averages, one a period of each unit of each rank; it is sound, and read as written."""
    verdict = verify(program)
    assert verdict.sound, [finding.message for finding in verdict.findings[:2]]
    assert read_text(write_text(program)) == program
    table, units = program.table, program.table.states.units
    averages = np.isin(table.kind, [Kind.AverageW, Kind.AverageCopy])
    counted = np.bincount(table.unit[averages], minlength=len(units.rank))
    assert (counted == 1).all(), "each unit of each rank once a period"
    return averages


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    SITES, st.integers(0, 2), st.sampled_from(["1f1b", "ratrain", "pe-zero"]), BY_TURNS,
    st.integers(1, 3), st.integers(0, 99), st.booleans(),
)  # fmt: skip
def test_sites_of_other_stages_and_other_numbers_of_replicas_are_sound_over_a_period(
    sites: Sequence[tuple[tuple[int, ...], int]], level: int, name: str, order: Averages,
    steps: int, seed: int, tied: bool,
) -> None:  # fmt: skip
    setup = unlike_sites(sites)
    choices = Choices(
        average_steps=steps,
        averages=order,
        average_turns=turns_drawn(setup, steps, seed, tied=tied),
        tie=tied,
    )
    alone = all(count == 1 for _, count in sites)
    chosen = replace(strategy(name), sharding=0 if alone else level)
    program = apply_strategy(chosen, setup, choices)
    require_sound_and_once(program)
    table, units = program.table, program.table.states.units
    rows = zip(units.replica.tolist(), units.peers.tolist(), strict=True)
    assert all(peers == sites[number][1] for number, peers in rows)
    reduced = table.kind == Kind.GradSync
    assert set(units.peers[table.unit[reduced]].tolist()) == {n for _, n in sites if n > 1}


DIVIDED = st.lists(
    st.tuples(
        st.sampled_from([((4,), (2,)), ((4,), (1,)), ((2, 2), (1, 2)), ((1, 3), (4, 4))]),
        st.integers(1, 3),
    ),
    min_size=2,
    max_size=3,
)


def divided_sites(sites: Sequence[tuple[tuple[tuple[int, ...], tuple[int, ...]], int]]) -> Setup:
    """The same, and the tensor degree of each stage."""
    setup = unlike_sites([(cut, count) for (cut, _), count in sites])
    return replace(
        setup,
        replicas=tuple(
            replace(
                each,
                stages=tuple(
                    Stage((replace(stage.only, tensor=degree),))
                    for stage, degree in zip(each.stages, degrees, strict=True)
                ),
            )
            for each, ((_, degrees), _) in zip(setup.replicas, sites, strict=True)
        ),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    DIVIDED, st.integers(0, 2), st.sampled_from(["1f1b", "ratrain", "pe-zero"]), BY_TURNS,
    st.integers(1, 3), st.integers(0, 99),
)  # fmt: skip
def test_sites_of_other_tensor_degrees_are_sound_over_a_period(
    sites: Sequence[tuple[tuple[tuple[int, ...], tuple[int, ...]], int]], level: int, name: str,
    order: Averages, steps: int, seed: int,
) -> None:  # fmt: skip
    setup = divided_sites(sites)
    turns = turns_drawn(setup, steps, seed, tied=False)
    choices = Choices(average_steps=steps, averages=order, average_turns=turns)
    alone = all(count == 1 for _, count in sites)
    program = apply_strategy(
        replace(strategy(name), sharding=0 if alone else level), setup, choices
    )
    averages = require_sound_and_once(program)
    table, units = program.table, program.table.states.units
    site = np.array([r.site for r in program.setup.replicas])[units.replica[table.unit]]
    for op in np.flatnonzero(averages & (table.group >= 0)).tolist():
        assert set(site[table.group == table.group[op]]) == set(range(len(sites)))


TWO_AND_ONE = [(((4,), (2,)), 1), (((2, 2), (1, 1)), 2)]


@pytest.mark.parametrize("order", [Averages.DREAMDDP, Averages.EARLY_START])
def test_what_is_planted_in_sites_of_other_tensor_degrees_is_found(order: Averages) -> None:
    """The conditions of averages by turns: each unit once in a period, the same order at all sites,
    nothing written between its copy and its update, the average behind all that reads the weights
    it overwrites."""
    setup = divided_sites(TWO_AND_ONE)
    turns = (("e", 0), ("0", 0), ("1", 1), ("2", 1), ("3", 0), ("h", 1))
    choices = Choices(average_steps=2, averages=order, average_turns=turns)
    program = apply_strategy(replace(strategy("ratrain"), sharding=1), setup, choices)
    assert verify(program).sound
    lane = program.lane(0, Lane.AVERAGE)

    def found(rank: int, of: Lane, actions: Sequence[Action]) -> set[Rule]:
        lanes = {**program.lanes, (rank, of): tuple(actions)}
        return {finding.rule for finding in verify(replace(program, lanes=lanes)).findings}

    assert Rule.INCOMPLETE_SYNC in found(0, Lane.AVERAGE, lane[1:]), "never averaged"
    assert found(0, Lane.AVERAGE, (lane[0], *lane)), "averaged twice"
    assert found(0, Lane.AVERAGE, lane[::-1]), "another order than at the other site"
    late = [action._replace(step=1 - action.step) if not n else action
            for n, action in enumerate(lane)]  # fmt: skip
    assert found(0, Lane.AVERAGE, late), "another step than at the other site"
    updates = program.lane(0, Lane.UPDATE)
    if order is Averages.EARLY_START:
        copy = next(a for a in updates if a.kind is Kind.CopyW)
        update = next(
            a for a in updates
            if a.kind is Kind.UpdateShard and a[1:3] == copy[1:3] and a.step == copy.step
        )  # fmt: skip
        swapped = [update if a == copy else copy if a == update else a for a in updates]
        assert found(0, Lane.UPDATE, swapped), "written before it was copied"


def members_of(stage: Stage, micro_batches: int, rank: int) -> Stage:
    """Two members of a stage, which take micro-batches by turns."""
    serves = [tuple(range(first, micro_batches, 2)) for first in range(2)]
    return Stage(
        tuple(replace(stage.only, rank=rank + n, serves=each) for n, each in enumerate(serves))
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 3), st.booleans(), st.integers(0, 2), st.sampled_from(["1f1b", "ratrain"]),
    BY_TURNS, st.integers(1, 3), st.integers(0, 99),
)  # fmt: skip
def test_a_site_whose_stages_have_members_is_sound_over_a_period(
    count: int, both: bool, level: int, name: str, order: Averages, steps: int, seed: int
) -> None:
    """Two ranks hold some units of the site, and one others, which it alone has a gradient of."""
    one, other = unlike_sites([((2, 2), 1), ((4,), count)]).replicas
    first, second = one.stages
    stages = (
        members_of(first, one.micro_batches, 0),
        members_of(second, one.micro_batches, 2) if both
        else Stage((replace(second.only, rank=2),)),
    )  # fmt: skip
    setup = with_copies(Setup((replace(one, stages=stages), other)))
    turns = turns_drawn(setup, steps, seed, tied=False)
    choices = Choices(average_steps=steps, averages=order, average_turns=turns)
    program = apply_strategy(replace(strategy(name), sharding=level), setup, choices)
    verdict = verify(program)
    assert verdict.sound, [finding.message for finding in verdict.findings[:2]]
    assert read_text(write_text(program)) == program
    table, units = program.table, program.table.states.units
    averages = np.isin(table.kind, [Kind.AverageW, Kind.AverageCopy])
    counted = np.bincount(table.unit[averages], minlength=len(units.rank))
    assert (counted == 1).all(), "each unit of each rank once a period"
    reduced = np.unique(table.unit[table.kind == Kind.GradSync])
    assert (units.peers[reduced] > 1).all() and set(units.peers[reduced]) <= {2, count}


@pytest.mark.parametrize("tied", [False, True])
def test_one_site_is_of_one_tensor_degree(tied: bool) -> None:
    """Replicas of a site, or the ends of a tied matrix there, add up their gradients."""
    each = divided_sites([(((2, 2), (2, 1)), 1), (((4,), (2,)), 1)]).replicas
    sites = (0, 1) if tied else (0, 0)
    replicas = tuple(replace(r, site=site) for r, site in zip(each, sites, strict=True))
    replicas += () if tied else (replace(each[0], site=1),)
    with pytest.raises(ProgramError, match="inside each site") as refused:
        Setup(replicas, tied=tied, averages=Averages.DREAMDDP)
    assert f"at tensor {'2 and 1' if tied else '1 and 2'}" in str(refused.value)


def test_what_unlike_degrees_cross_a_line_with_is_counted_once_and_goes_in_more_averages() -> None:
    for sites, rounds in (
        ([(((4,), (2,)), 1), (((4,), (1,)), 1)], 2),
        ([(((4,), (2,)), 1), (((4,), (1,)), 2)], 2),
        ([(((4,), (2,)), 2), (((4,), (1,)), 1)], 4),
        ([(((4,), (2,)), 1), (((4,), (2,)), 3)], 3),
    ):
        setup = replace(divided_sites(sites), averages=Averages.DREAMDDP)
        assert average_rounds(setup) == rounds
        between = between_sites(setup)
        least = min(degree for (_, (degree,)), _ in sites)
        assert between is not None and between.last_bytes == 2 * 6 * 40 * least


@pytest.mark.parametrize("level", range(3))
def test_what_one_of_unlike_sites_forgets_to_average_is_told(level: int) -> None:
    setup = unlike_sites([((4,), 1), ((2, 2), 3)])
    turns = turns_drawn(setup, 2, 1, tied=False)
    choices = Choices(average_steps=2, averages=Averages.EARLY_START, average_turns=turns)
    program = apply_strategy(replace(strategy("ratrain"), sharding=level), setup, choices)
    fewer = {**program.lanes, (1, Lane.AVERAGE): program.lane(1, Lane.AVERAGE)[1:]}
    rules = {finding.rule for finding in verify(replace(program, lanes=fewer)).findings}
    assert Rule.INCOMPLETE_SYNC in rules


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"averages": Averages.LOCAL_SGD}, "averages early-start"),
        ({"averages": Averages.DREAMDDP, "sharding": 3}, "sites where 2 and 3 ranks hold unit 0"),
        (
            {
                "averages": Averages.DREAMDDP, "sharding": 2,
                "accumulation": Accumulation.SHARDED,
            },
            "sites where 2 and 3 ranks hold unit 0",
        ),
    ],
)  # fmt: skip
def test_sites_that_cannot_average_with_each_other_are_refused(
    keys: dict[str, Any], words: str
) -> None:
    setup = Setup(tuple(replace(r, site=n) for n, r in enumerate(TWO_AND_THREE)))
    with pytest.raises(ProgramError, match=words):
        replace(with_copies(setup), **keys)


def test_of_what_an_owner_has_it_averages_as_many_parts_as_sites_of_more_owners_cut_it_in() -> None:
    for counts, rounds in (((2, 2), 1), ((1, 3), 3), ((2, 3), 2), ((1, 2, 3), 4)):
        setup = replace(
            unlike_sites([((4,), count) for count in counts]), averages=Averages.DREAMDDP
        )
        assert average_rounds(setup) == rounds
        between = between_sites(setup)
        assert between is not None and between.last_bytes == 2 * (len(counts) - 1) * 6 * 40
