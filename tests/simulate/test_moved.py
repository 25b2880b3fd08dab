"""The bytes that a program moves between memory tiers."""

from __future__ import annotations

import pytest
from costs_made import random_costs
from made import small

from ratrain.describe.units import format_bytes
from ratrain.program.passes.offloading import offload_views
from ratrain.simulate.moved import moved_by
from ratrain.simulate.simulate import simulate
from ratrain.simulate.summary import as_text


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_an_optimizer_that_waits_is_read_and_written_once_a_step(tier: str) -> None:
    table = small("ratrain", optimizer_tier=tier).table
    states = table.states
    for row in moved_by(table):
        held = states.in_tier(tier) & states.persistent & (states.rank == row.rank)
        there = int(states.size_bytes[held].sum())
        assert (row.tier, row.read_bytes, row.written_bytes) == (tier, there, there) != (tier, 0, 0)
    assert len(moved_by(table)) == table.setup.ranks


def test_weights_that_wait_are_written_once_and_read_at_least_once_a_step() -> None:
    kept = small("ratrain", optimizer_tier="host")
    for row in moved_by(offload_views(kept, "disk").table):
        assert row.tier == "host" or 0 < row.written_bytes <= row.read_bytes


def test_a_program_without_tiers_moves_nothing() -> None:
    assert moved_by(small("ratrain").table) == ()


def test_what_a_disk_has_to_bear_in_a_day_is_said_and_of_memory_nothing() -> None:
    for tier in ("host", "disk"):
        program = small("ratrain", optimizer_tier=tier)
        simulation = simulate(program, random_costs(program.table, 1))
        written = max(moved_by(program.table), key=lambda row: row.total_bytes).written_bytes
        words = f"{format_bytes(written / simulation.step_time_s * 24 * 3600)} written a day"
        assert (words in " ".join(as_text(simulation, 100)).replace("   ", " ")) == (tier == "disk")
