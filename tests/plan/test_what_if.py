"""Costs as if devices or links were faster: what changes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ratrain.plan.case.case import Case
from ratrain.plan.file.form import load_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.plan import Plan
from ratrain.plan.price.what_if import computing_faster, sending_faster
from ratrain.program.kind import Kind
from ratrain.program.replicas import Recovery
from ratrain.simulate.long import simulate_proved

EXAMPLE = Path(__file__).parents[2] / "examples" / "unequal-replicas.json"
SUBJECT = plan_of_file(load_plan(EXAMPLE), str(EXAMPLE))
CASE = Case(SUBJECT)
SETUP = CASE.proved.short.setup
RANK_OF_UNIT = np.repeat([0, 1, 2, 3], [10, 6, 2, 2])
"""The example's units in order: an embedding, 8 layers and a head on rank 0, and so on."""


def test_faster_devices_compute_in_half_of_the_time_and_others_as_before() -> None:
    faster = computing_faster(CASE.costs, SETUP, {2}, 2.0)
    here = RANK_OF_UNIT == 2
    for kind in (Kind.F, Kind.B, Kind.R):
        before, after = CASE.costs.work[kind].fixed_s, faster.work[kind].fixed_s
        assert np.allclose(after[here], before[here] / 2)
        assert (after[~here] == before[~here]).all()
    assert faster.work[Kind.GradSync] is CASE.costs.work[Kind.GradSync]


def test_faster_links_are_those_of_messages_with_either_end_there() -> None:
    faster = sending_faster(CASE.costs, SETUP, {3}, 2.0)
    sent = CASE.costs.work[Kind.SEND_F].volume_bytes
    changed = faster.work[Kind.SEND_F].volume_bytes != sent
    assert set(RANK_OF_UNIT[changed]) == {2}  # rank 2 sends forward to rank 3
    assert np.allclose(faster.work[Kind.SEND_F].volume_bytes[changed], sent[changed] / 2)
    back = CASE.costs.work[Kind.SEND_B].volume_bytes
    changed = faster.work[Kind.SEND_B].volume_bytes != back
    assert set(RANK_OF_UNIT[changed]) == {3}


def test_faster_links_are_those_of_every_collective_that_a_rank_takes_part_in() -> None:
    faster = sending_faster(CASE.costs, SETUP, {3}, 2.0)
    before = CASE.costs.work[Kind.GradSync].volume_bytes
    after = faster.work[Kind.GradSync].volume_bytes
    assert np.allclose(after[-2:], before[-2:] / 2)  # the last layer and the head
    assert np.allclose(after[8:10], before[8:10] / 2)  # the same on rank 0
    assert (after[:8] == before[:8]).all()


def test_everything_twice_as_fast_halves_the_compute_bound_step() -> None:
    ranks = range(SETUP.ranks)
    costs = sending_faster(computing_faster(CASE.costs, SETUP, ranks, 2.0), SETUP, ranks, 2.0)
    before = simulate_proved(CASE.proved, CASE.costs).step_time_s
    after = simulate_proved(CASE.proved, costs).step_time_s
    assert after == pytest.approx(before / 2, rel=0.02)  # updates stay


def test_a_plan_that_keeps_everything_on_some_ranks_recovers_on_the_others() -> None:
    kept = SUBJECT.keeping({2})
    assert isinstance(kept, Plan)
    assert not any(
        mode is Recovery.FORWARD for replica in kept.replicas for mode in replica.recovery
    )
    other = SUBJECT.keeping({0, 3})
    assert other == SUBJECT
