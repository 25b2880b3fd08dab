"""Optimizer states that wait in another memory tier: what it saves, and what it must not change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from made import Case, cases, small

from ratrain.errors import ProgramError
from ratrain.program.actions import Action, Kind, Lane
from ratrain.program.families import DEVICE, OPTIMIZER_SLOTS
from ratrain.program.passes.averaging import average_weights
from ratrain.program.program import Program
from ratrain.program.setup import Averages
from ratrain.program.uses import READ, WRITE
from ratrain.program.verify import Rule, verify

quick = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def with_tier(case: Case, tier: str) -> Program:
    return replace(case, choices=replace(case.choices, optimizer_tier=tier)).program


@quick
@given(cases())
@pytest.mark.slow
def test_the_device_holds_slots_for_what_the_other_tier_holds_and_nothing_else_changes(
    case: Case,
) -> None:
    kept = with_tier(case, "")
    owned = {bound.rank: bound.by_family.get("optimizer", 0) for bound in verify(kept).bounds}
    for tier in ("host", "disk"):
        away, states = with_tier(case, tier), with_tier(case, tier).table.states
        verdict = verify(away)
        assert verdict.sound
        there = {b.rank: b.total_bytes for b in verdict.lower_bounds if b.tier == tier}
        assert there == owned or not any(owned.values())
        for with_all, bound in zip(verify(kept).bounds, verdict.bounds, strict=True):
            slots = states.size_bytes[
                (states.family == [f.name for f in states.families].index("optimizer_slot"))
                & (states.rank == bound.rank)
            ]
            assert len(slots) == OPTIMIZER_SLOTS
            assert bound.total_bytes == with_all.total_bytes - owned[bound.rank] + slots.sum()


@quick
@given(cases())
def test_fetches_and_stores_go_in_the_order_of_updates_and_compute_as_before(case: Case) -> None:
    kept, away = with_tier(case, ""), with_tier(case, "disk")
    for rank in range(kept.setup.ranks):
        for lane in Lane:
            if lane not in (Lane.LOAD, Lane.STORE):
                assert away.lane(rank, lane) == kept.lane(rank, lane)
        updates = [a for a in away.lane(rank, Lane.UPDATE) if a.kind is Kind.UpdateShard]
        for lane, kind in ((Lane.LOAD, Kind.FetchOptimizer), (Lane.STORE, Kind.StoreOptimizer)):
            assert list(away.lane(rank, lane)) == [a._replace(kind=kind) for a in updates]


@pytest.mark.parametrize("name", ["ratrain", "breadth-first", "zero3-heavy"])
def test_updates_in_another_order_than_their_fetches_jam(name: str) -> None:
    """What is fetched last and updated first would need another slot."""
    away = small(name, (4, 4), optimizer_tier="disk")

    def last_first(_rank: int, _lane: Lane, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        return (actions[-1], *actions[:-1])

    jammed = away.edit("last first", Lane.UPDATE, by=last_first)
    assert {finding.rule for finding in verify(jammed).findings} & {
        Rule.DEADLOCK,
        Rule.USE_AFTER_FREE,
    }


def test_averages_of_weights_need_the_optimizer_on_the_device() -> None:
    with pytest.raises(ProgramError, match="which must be in the device's memory"):
        average_weights(small("megatron", optimizer_tier="host"), 2, Averages.LOCAL_SGD, {})


def test_only_what_is_away_is_fetched() -> None:
    away = small("ratrain", optimizer_tier="disk")
    setup = away.setup.with_members(lambda member, _: replace(member, optimizer_tier=DEVICE))
    with pytest.raises(ProgramError, match="names a unit whose optimizer is on the device"):
        verify(away.with_setup(setup))


def test_a_save_reads_on_disk_what_the_store_of_its_step_has_left_there() -> None:
    """A checkpoint takes the file: not before the store, and not after the next step's."""
    table = small("ratrain", optimizer_tier="disk", save=True).table
    uses, (family,) = table.uses, [f for f in table.states.families if f.name == "optimizer_disk"]
    there = (uses.state >= family.start) & (uses.state < family.start + family.count)

    def versions(kind: Kind, mode: int) -> set[tuple[int, int]]:
        rows = there & (uses.mode == mode) & (table.kind[uses.op] == kind)
        return set(zip(uses.state[rows].tolist(), uses.version[rows].tolist(), strict=True))

    stored = versions(Kind.StoreOptimizer, WRITE)
    assert len(stored) == len(table.states.units.rank)
    assert versions(Kind.Save, READ) == stored
    in_memory = small("ratrain", optimizer_tier="host", save=True).table
    assert Kind.Save not in {
        int(in_memory.kind[op])
        for op, state in zip(in_memory.uses.op, in_memory.uses.state, strict=True)
        if in_memory.states.name(int(state)).startswith("optimizer_host")
    }
