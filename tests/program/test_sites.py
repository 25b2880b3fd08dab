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
from ratrain.program.between import average_rounds, between_sites
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.setup import Accumulation, Averages, Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.text import read_text, write_text
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
    verdict = verify(program)
    assert verdict.sound, [finding.message for finding in verdict.findings[:2]]
    assert read_text(write_text(program)) == program
    table, units = program.table, program.table.states.units
    averages = np.isin(table.kind, [Kind.AverageW, Kind.AverageCopy])
    counted = np.bincount(table.unit[averages], minlength=len(units.rank))
    assert (counted == 1).all(), "each unit of each rank once a period"
    rows = zip(units.replica.tolist(), units.peers.tolist(), strict=True)
    assert all(peers == sites[number][1] for number, peers in rows)
    reduced = table.kind == Kind.GradSync
    assert set(units.peers[table.unit[reduced]].tolist()) == {n for _, n in sites if n > 1}


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
        ({"averages": Averages.DREAMDDP, "sharding": 3}, "sites of 2 and 3 replicas"),
        (
            {
                "averages": Averages.DREAMDDP, "sharding": 2,
                "accumulation": Accumulation.SHARDED,
            },
            "sites of 2 and 3 replicas",
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
