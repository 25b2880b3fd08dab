"""Weights and activations that wait in other tiers: what moves, and what the device holds."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from made import Case, cases, named_skeletons, replica, small

from ratrain.errors import ProgramError
from ratrain.program.actions import Action, Kind, Lane
from ratrain.program.passes.forward_only import forward_only
from ratrain.program.passes.offloading import LEAST_WAIT, offload_activations, offload_views
from ratrain.program.program import Program
from ratrain.program.replicas import Recovery
from ratrain.program.setup import Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.text.read import read_text
from ratrain.program.text.write import write_text
from ratrain.program.verify import Rule, verify

TIER_KEYS = ("optimizer_tier", "view_tier", "gradient_tier", "activation_tier")

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def held(program: Program, *families: str) -> int:
    """Bytes of persistent families on rank 0."""
    states = program.table.states
    names = [family.name for family in states.families]
    of = np.isin(states.family, [names.index(name) for name in families])
    return int(states.size_bytes[of & states.persistent & (states.rank == 0)].sum())


@quick
@given(cases())
@pytest.mark.slow
def test_weights_that_wait_leave_a_sound_program_whose_text_says_all(case: Case) -> None:
    if case.choices.average_steps:
        return
    kept = replace(case, choices=replace(case.choices, optimizer_tier="disk")).program
    away = offload_views(kept, "disk")
    assert verify(away).sound and verify(forward_only(away)).sound
    assert read_text(write_text(away)) == away
    assert held(away, "view", "shard_view") == 0
    assert held(away, "view_disk") == held(kept, "view", "shard_view")


@pytest.mark.parametrize("skeleton", named_skeletons())
@pytest.mark.parametrize("cut", [(4,), (2, 2), (1, 1, 3)])
def test_spilled_activations_leave_a_sound_program_in_every_order(
    skeleton: str, cut: tuple[int, ...]
) -> None:
    setup = Setup((replica(cut, 6, ends=True),))
    chosen = replace(strategy("ratrain"), skeleton=skeleton)
    try:
        kept = apply_strategy(chosen, setup, Choices(recovery=(Recovery.SPILL,) * len(cut)))
    except ProgramError:
        return  # an order that takes other numbers of micro-batches
    away = offload_activations(kept, "disk")
    assert verify(away).sound
    assert read_text(write_text(away)) == away
    for rank in range(setup.ranks):
        spills = [action[1:] for action in away.lane(rank, Lane.OFFLOAD)]
        fills = [action[1:] for action in away.lane(rank, Lane.FETCH)]
        compute = away.lane(rank, Lane.COMPUTE)
        used = (Kind.F, Kind.B, Kind.I)
        places = [action[1:] for action in compute if action.kind in used]
        far = [cell for cell in dict.fromkeys(places) if _wait(places, cell) > LEAST_WAIT]
        assert spills == far and sorted(fills) == sorted(far)


def _wait(places: list[tuple[int, ...]], cell: tuple[int, ...]) -> int:
    there, back = (place for place, other in enumerate(places) if other == cell)
    return back - there


@pytest.mark.parametrize("micro_batches", [4, 8, 16])
def test_a_layer_major_order_fetches_weights_twice_a_step_whatever_the_micro_batches(
    micro_batches: int,
) -> None:
    """GreedySnake's order. One by one they are fetched twice a micro-batch, but where one unit's
    uses follow each other."""

    def fetches(skeleton: str, recovery: Recovery) -> int:
        setup = Setup((replica((6,), micro_batches, ends=True),))
        choices = Choices(recovery=(recovery,), optimizer_tier="disk", view_tier="disk")
        program = apply_strategy(replace(strategy("ratrain"), skeleton=skeleton), setup, choices)
        assert verify(program).sound
        kinds = (Kind.FetchView_F, Kind.FetchView_R, Kind.FetchView_B)
        return sum(action.kind in kinds for action in program.lane(0, Lane.FETCH))

    units = 8
    for recovery in (Recovery.NONE, Recovery.BACKWARD):
        assert fetches(f"layer-major-{micro_batches}", recovery) == 2 * units - 1
        ends = 2 * micro_batches - 1  # head: forward and back; embedding: back and forward
        assert fetches("1f1b", recovery) == 2 * units * micro_batches - ends


def test_weights_wait_only_beside_an_optimizer_that_waits() -> None:
    with pytest.raises(ProgramError, match="made of the optimizer's, which must wait too"):
        offload_views(small("ratrain"), "disk")


@pytest.mark.parametrize("kind", [Kind.FetchView_F, Kind.StoreView])
def test_a_move_that_is_left_out_is_found(kind: Kind) -> None:
    away = offload_views(small("ratrain", optimizer_tier="host"), "host")

    def without_first(_rank: int, _lane: Lane, actions: tuple[Action, ...]) -> list[Action]:
        first = next((action for action in actions if action.kind is kind), None)
        return [action for action in actions if action is not first]

    broken = away.edit("without one", Lane.FETCH, Lane.OFFLOAD, by=without_first)
    rules = {finding.rule for finding in verify(broken).findings}
    assert rules & {Rule.READ_BEFORE_WRITE, Rule.NOT_UPDATED, Rule.USE_AFTER_FREE}


@pytest.mark.parametrize("skeleton", [s for s in named_skeletons() if s != "interleaved"])
@pytest.mark.parametrize("cut", [(4,), (2, 2), (1, 1, 3)])
@pytest.mark.parametrize("sharding", range(4))
def test_gradients_that_wait_leave_a_sound_program_in_every_order_and_sharding_level(
    skeleton: str, cut: tuple[int, ...], sharding: int
) -> None:
    chosen = replace(strategy("ratrain"), skeleton=skeleton, sharding=sharding)
    setup = Setup((replica(cut, 6, 2, ends=True),))
    choices = Choices(gradient_tier="disk", keep_all=True)
    away = apply_strategy(chosen, setup, choices)
    with_all = replace(choices, optimizer_tier="disk", view_tier="disk")
    assert verify(apply_strategy(chosen, setup, with_all)).sound
    verdict = verify(away)
    assert verdict.sound
    assert read_text(write_text(away)) == away
    for rank in range(setup.ranks):
        stored = [a for a in away.lane(rank, Lane.OFFLOAD) if a.kind is Kind.StoreGradient]
        fetched = [a for a in away.lane(rank, Lane.FETCH) if a.kind is Kind.FetchGradient]
        assert len(stored) == len(fetched)
    assert all("gradient" not in bound.by_family for bound in verdict.bounds)


def test_a_layer_major_order_moves_no_gradient_and_holds_three() -> None:
    setup = Setup((replica((6,), 4, ends=True),))
    chosen = replace(strategy("ratrain"), skeleton="layer-major-4")
    away = apply_strategy(chosen, setup, Choices(gradient_tier="disk"))
    moves = (Kind.StoreGradient, Kind.FetchGradient)
    every = [a for lane in Lane for a in away.lane(0, lane)]
    assert not any(action.kind in moves for action in every)
    largest = max(unit.gradient_bytes for unit in setup.replicas[0].stages[0].only.units)
    assert verify(away).bounds[0].by_family["gradient_slot"] == 3 * largest


@pytest.mark.parametrize("skeleton", [s for s in named_skeletons() if s != "interleaved"])
@pytest.mark.parametrize("data", [1, 2])
@pytest.mark.parametrize("sharding", range(4))
def test_gradients_that_are_clipped_leave_whole_and_come_back_for_their_updates(
    skeleton: str, data: int, sharding: int
) -> None:
    chosen = replace(strategy("ratrain"), skeleton=skeleton, sharding=sharding)
    setup = Setup((replica((2, 2), 6, data, ends=True),))
    choices = Choices(gradient_tier="disk", clip=True, keep_all=True)
    away = apply_strategy(chosen, setup, choices)
    verdict = verify(away)
    assert verdict.sound, verdict.findings[:3]
    assert read_text(write_text(away)) == away
    for rank in range(setup.ranks):
        updates = [a for a in away.lane(rank, Lane.UPDATE) if a.kind is Kind.UpdateShard]
        stored = [a[1:3] for a in away.lane(rank, Lane.OFFLOAD) if a.kind is Kind.StoreSum]
        fetched = [a[1:3] for a in away.lane(rank, Lane.FETCH) if a.kind is Kind.FetchSum]
        assert sorted(stored) == sorted(fetched) and fetched == [a[1:3] for a in updates]
    assert all("gradient" not in bound.by_family for bound in verdict.bounds)


@pytest.mark.parametrize(
    "waits", [*combinations(TIER_KEYS, 2), *combinations(TIER_KEYS, 3), TIER_KEYS]
)
@pytest.mark.parametrize("skeleton", [s for s in named_skeletons() if s != "interleaved"])
@pytest.mark.parametrize("clip", [False, True])
def test_states_of_all_sorts_wait_beside_each_other(
    waits: tuple[str, ...], skeleton: str, clip: bool
) -> None:
    if "view_tier" in waits and "optimizer_tier" not in waits:
        return  # refused by name: such weights are made of the optimizer's
    chosen = replace(strategy("ratrain"), skeleton=skeleton)
    for cut, data in (((4,), 1), ((2, 2), 1), ((2, 2), 2)):
        setup = Setup((replica(cut, 6, data, ends=True),))
        choices = Choices(clip=clip, recovery=(Recovery.SPILL,) * len(cut))
        for key in waits:
            choices = replace(choices, **{key: "disk"})
        verdict = verify(apply_strategy(chosen, setup, choices))
        assert verdict.sound, (cut, data, verdict.findings[:2])


@pytest.mark.parametrize("kind", [Kind.StoreSum, Kind.FetchSum])
def test_a_clipped_gradient_that_does_not_leave_or_come_back_is_found(kind: Kind) -> None:
    setup = Setup((replica((3,), 4, ends=True),))
    away = apply_strategy(strategy("ratrain"), setup, Choices(clip=True, gradient_tier="disk"))

    def without_first(_rank: int, _lane: Lane, actions: tuple[Action, ...]) -> list[Action]:
        first = next((action for action in actions if action.kind is kind), None)
        return [action for action in actions if action is not first]

    broken = away.edit("without one", Lane.FETCH, Lane.OFFLOAD, by=without_first)
    assert not verify(broken).sound


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("cut", [(5,), (2, 3)])
def test_a_tied_matrix_has_its_gradients_on_the_device_and_all_others_wait(
    cut: tuple[int, ...], clip: bool
) -> None:
    setup = Setup((replica(cut, 6, ends=True),))
    choices = Choices(gradient_tier="disk", tie=True, clip=clip, keep_all=True)
    away = apply_strategy(strategy("ratrain"), setup, choices)
    verdict = verify(away)
    assert verdict.sound, verdict.findings[:3]
    ends = (
        away.setup.replicas[0].stages[0].only.units[0],
        away.setup.replicas[0].stages[-1].only.units[-1],
    )
    held = sum(bound.by_family.get("gradient", 0) for bound in verdict.bounds)
    assert held == sum(unit.gradient_bytes for unit in ends)


@pytest.mark.parametrize("recovery", [Recovery.BACKWARD, Recovery.FORWARD])
@pytest.mark.parametrize("buffer", [1, 2, 3])
@pytest.mark.parametrize("sharding", [0, 3])
def test_weights_that_recovery_has_fetched_are_fetched_again_where_backward_comes_later(
    recovery: Recovery, buffer: int, sharding: int
) -> None:
    """Recovery ahead of backward has other units between it and its own backward."""
    setup = Setup((replica((6,), 4, 2, ends=True),), recovery_buffer=buffer)
    chosen = replace(strategy("ratrain"), sharding=sharding)
    choices = Choices(recovery=(recovery,), optimizer_tier="disk", view_tier="disk")
    assert verify(apply_strategy(chosen, setup, choices)).sound
