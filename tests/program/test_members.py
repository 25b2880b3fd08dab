"""Stages of several members, each a rank of its own that serves some micro-batches: sound for every
assignment, in proportion or not, with members that serve none; and what is broken in them is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import LAYER, layers_of, replica

from ratrain.errors import ProgramError
from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.replicas import Member, Recovery, Replica, Stage
from ratrain.program.setup import Accumulation, Averages, Setup
from ratrain.program.strategies import Choices, Strategy, apply_strategy
from ratrain.program.text.read import read_text
from ratrain.program.text.write import write_text
from ratrain.program.verify import Rule, verify
from ratrain.simulate.costs import Costs, fixed_work
from ratrain.simulate.simulate import simulate

Serving = tuple[tuple[tuple[int, ...], ...], ...]
"""For each stage, for each of its members, what it serves."""


def of_members(serving: Serving, micro_batches: int, count: int = 1) -> Replica:
    """A replica of one or two layers a stage, whose stages have these members."""
    cut = tuple(1 + number % 2 for number in range(len(serving)))
    stages: list[Stage] = []
    rank = 0
    for units, shares in zip(layers_of(cut, ends=True), serving, strict=True):
        members = [Member(rank + n, units, 7, serves=share) for n, share in enumerate(shares)]
        rank += len(members)
        stages.append(Stage(tuple(members)))
    return Replica(tuple(stages), micro_batches, count)


@st.composite
def servings(draw: st.DrawFn) -> tuple[Serving, int]:
    """Any members, up to four in each of up to four stages, each micro-batch with any of them."""
    micro_batches = draw(st.integers(1, 7))
    serving: list[tuple[tuple[int, ...], ...]] = []
    for _ in range(draw(st.integers(1, 4))):
        members = draw(st.integers(1, 4))
        taken = draw(
            st.lists(st.integers(0, members - 1), min_size=micro_batches, max_size=micro_batches)
        )
        serving.append(
            tuple(
                tuple(m for m, member in enumerate(taken) if member == number)
                for number in range(members)
            )
        )
    return tuple(serving), micro_batches


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A program of any members, by any order of one stage a rank, with any passes."""
    serving, micro_batches = draw(servings())
    members = of_members(serving, micro_batches, draw(st.integers(1, 2)))
    replicas = [members]
    if draw(st.booleans()):  # a replica beside it that is a pipeline of fixed ranks
        cut = tuple(1 + number % 2 for number in range(len(serving)))
        replicas.append(replica(cut, draw(st.integers(1, 5)), ends=True))
    layerwise = draw(st.booleans())
    strategy = Strategy(
        "random",
        draw(st.sampled_from(list(Recovery))),
        draw(st.integers(0, 2)),
        layerwise,
        prefetch=layerwise and draw(st.booleans()),
        skeleton=draw(
            st.sampled_from(["1f1b", "gpipe", "zb-h1", "breadth-first", "layer-major-2"])
        ),
    )
    choices = Choices(clip=draw(st.booleans()), save=draw(st.booleans()))
    tensor = draw(st.sampled_from([1, 1, 2]))
    setup = Setup(tuple(replicas), recovery_buffer=draw(st.integers(1, 2)))
    setup = setup.with_members(lambda member, _: replace(member, tensor=tensor))
    return apply_strategy(strategy, setup, choices)


def costs(program: Program) -> Costs:
    """A second for everything."""
    units = len(program.table.states.units.rank)
    return Costs({kind: fixed_work(np.ones(units)) for kind in Kind}, np.zeros(0))


def is_sound(program: Program) -> None:
    """Proves and simulates a program, and reads its text."""
    verdict = verify(program)
    assert verdict.sound, verdict.findings[:3]
    assert len(verdict.bounds) == program.setup.ranks
    simulation = simulate(program, costs(program), steps=2, verdict=verdict)
    assert 0 < simulation.step_time_s < 1e6
    assert all(
        times.peak_bytes <= bound.total_bytes
        for times, bound in zip(simulation.ranks, verdict.bounds, strict=True)
    )
    assert read_text(write_text(program)) == program


@settings(max_examples=15, deadline=None)
@given(programs())
def test_any_assignment_is_sound_runs_to_its_end_and_is_read_back_from_its_text(
    program: Program,
) -> None:
    is_sound(program)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(programs())
def test_a_thousand_more_are_too(program: Program) -> None:
    is_sound(program)


@settings(max_examples=40, deadline=None)
@given(programs())
def test_each_micro_batch_is_computed_by_the_member_that_serves_it_in_ascending_order(
    program: Program,
) -> None:
    for first, each in zip(program.setup.first_rank, program.setup.replicas, strict=True):
        for number, stage in enumerate(each.stages):
            for member in stage.members:
                for kind in (Kind.F, Kind.B, Kind.W):
                    seen = [
                        action.micro_batch
                        for action in program.lane(first + member.rank, Lane.COMPUTE)
                        if action.kind is kind and (action.stage, action.unit) == (number, 0)
                    ]
                    split = program.setup.split_backward == (kind is Kind.W)
                    expected = list(each.serves(member)) if kind is Kind.F or split else []
                    assert seen == expected


PLAIN = Strategy("any", Recovery.NONE, 0, False, prefetch=False)
IDLE: Serving = (((0, 1, 2, 3),), ((0, 2), (1, 3), ()), ((0, 1, 2, 3),))


@pytest.mark.parametrize("sharding", [0, 1, 2])
def test_a_member_without_a_micro_batch_reduces_and_updates_and_computes_nothing(
    sharding: int,
) -> None:
    setup = Setup((of_members(IDLE, 4),))
    strategy = Strategy("any", Recovery.NONE, sharding, layerwise=True, prefetch=True)
    program = apply_strategy(strategy, setup, Choices())
    words = {action.kind for lane in Lane for action in program.lane(3, lane)}
    expected = {Kind.GradSync, Kind.UpdateShard}
    assert words == (expected | {Kind.PrefetchW} if sharding else expected)
    verdict = verify(program)
    assert verdict.sound
    bound = verdict.bounds[3].by_family
    units = setup.replicas[0].stages[1].members[2].units
    assert bound["gradient"] == sum(unit.gradient_bytes for unit in units)
    assert bound["view"] == sum(unit.view_bytes for unit in units)
    assert not bound.get("saved") and not bound.get("input")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sharding": 3}, "cannot gather views for every use"),
        ({"sharding": 3, "gathers_per_pass": True}, "cannot gather views for their uses"),
        ({"averages": Averages.LOCAL_SGD}, "would have no gradient"),
        ({"sharding": 2, "accumulation": Accumulation.SHARDED}, "cannot reduce once per"),
    ],
    ids=str,
)
def test_what_a_member_without_a_micro_batch_cannot_join_is_refused(
    changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ProgramError, match=says):
        Setup((of_members(IDLE, 4),), **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("skeleton", ["1f1b", "gpipe", "zb-h1", "breadth-first", "layer-major-2"])
def test_one_member_that_serves_all_has_the_program_of_a_stage_without_a_share(
    skeleton: str,
) -> None:
    plain = of_members((((0, 1, 2, 3, 4),),) * 3, 5)
    named = Setup((plain, plain))
    silent = named.with_members(lambda member, _: replace(member, serves=None))
    strategy = Strategy("any", Recovery.FORWARD, 2, True, prefetch=True, skeleton=skeleton)
    first, second = (apply_strategy(strategy, setup, Choices()) for setup in (named, silent))
    assert dict(first.lanes) == dict(second.lanes)
    assert verify(first).bounds == verify(second).bounds
    assert simulate(first, costs(first)).step_time_s == simulate(second, costs(second)).step_time_s


def test_a_warm_up_that_counts_a_member_s_own_micro_batches_would_wait_for_ever() -> None:
    """Rank 1 would compute 5 forward before it computes 0 backward, which rank 0 must have before
    its forward of 5. Ours follows the order of the whole stage."""
    serving = (((0, 1, 2, 3, 4, 5),), ((0, 5), (1, 2, 3, 4)), ((0, 1, 2, 3, 4, 5),))
    program = apply_strategy(PLAIN, Setup((of_members(serving, 6),)), Choices())
    assert verify(program).sound
    lane = program.lanes[1, Lane.COMPUTE]
    turn = [(Kind.F, 0), (Kind.F, 5), (Kind.B, 0), (Kind.B, 5)]
    mine = sorted(lane[:-1], key=lambda action: turn.index((action.kind, action.micro_batch)))
    assert Rule.DEADLOCK in broken_rules(program, 1, Lane.COMPUTE, [*mine, lane[-1]])


# ---- what is broken is found -------------------------------------------------------------


def ops_of(program: Program, *wanted: Kind) -> Iterator[tuple[int, Lane, int]]:
    """(rank, lane, place) of every op of these kinds."""
    for (rank, lane), actions in program.lanes.items():
        for place, action in enumerate(actions):
            if action.kind in wanted:
                yield rank, lane, place


def broken_rules(program: Program, rank: int, lane: Lane, actions: list[Action]) -> set[Rule]:
    changed = replace(program, lanes={**program.lanes, (rank, lane): tuple(actions)})
    return {finding.rule for finding in verify(changed).findings}


def of_routes(seed: int) -> Program:
    """A program of three stages of one to three members, each micro-batch with any of them."""
    rng = Random(seed)
    serving: list[tuple[tuple[int, ...], ...]] = []
    for _ in range(3):
        members = rng.randint(2, 3)
        taken = [rng.randrange(members) for _ in range(6)]
        serving.append(
            tuple(tuple(m for m, who in enumerate(taken) if who == n) for n in range(members))
        )
    chosen = Strategy("any", Recovery.NONE, 2, layerwise=True, prefetch=True)
    return apply_strategy(chosen, Setup((of_members(tuple(serving), 6),)), Choices(clip=True))


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (Kind.SEND_F, Rule.MISSING_SEND),
        (Kind.SEND_B, Rule.MISSING_SEND),
        (Kind.RECV_F, Rule.MISSING_RECEIVE),
        (Kind.RECV_B, Rule.MISSING_RECEIVE),
        (Kind.F, Rule.MISSING_FORWARD),
        (Kind.GradSync, Rule.MISSING_PARTNER),
        (Kind.PrefetchW, Rule.MISSING_PARTNER),
        (Kind.ClipNorm, Rule.MISSING_PARTNER),
        (Kind.UpdateShard, Rule.NOT_UPDATED),
    ],
)
def test_an_op_that_one_member_leaves_out_is_found(kind: Kind, rule: Rule) -> None:
    for seed in range(10):
        program = of_routes(seed)
        rank, lane, place = Random(seed).choice(list(ops_of(program, kind)))
        actions = list(program.lanes[rank, lane])
        del actions[place]
        assert rule in broken_rules(program, rank, lane, actions), seed


def test_members_that_reduce_in_opposite_order_are_a_deadlock() -> None:
    for seed in range(10):
        program = of_routes(seed)
        pairs = [
            (rank, place)
            for (rank, lane), actions in program.lanes.items()
            if lane is Lane.REDUCE
            for place in range(len(actions) - 1)
            if actions[place].kind is actions[place + 1].kind is Kind.GradSync
        ]
        rank, place = Random(seed).choice(pairs)
        actions = list(program.lanes[rank, Lane.REDUCE])
        actions[place], actions[place + 1] = actions[place + 1], actions[place]
        assert Rule.DEADLOCK in broken_rules(program, rank, Lane.REDUCE, actions), seed


def test_two_members_that_compute_each_other_s_micro_batch_are_found() -> None:
    serving = (((0, 1, 2, 3),), ((0, 2), (1, 3)), ((0, 1, 2, 3),))
    program = apply_strategy(PLAIN, Setup((of_members(serving, 4),)), Choices())
    moved = [
        action._replace(micro_batch=1) if action.micro_batch == 0 else action
        for action in program.lanes[1, Lane.COMPUTE]
    ]
    changed = replace(program, lanes={**program.lanes, (1, Lane.COMPUTE): tuple(moved)})
    with pytest.raises(ProgramError, match="names a micro-batch that the setup does not have"):
        verify(changed)


def test_a_unit_is_held_by_every_member_of_its_stage() -> None:
    setup = Setup((of_members(IDLE, 4, count=2),))
    assert setup.holders["1"] == setup.holders["2"] == 6
    assert setup.holders["0"] == 2 and LAYER.view_bytes == 100
