"""Clipping and saving: where their ops stand, what they cost in memory, and how they jam."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from made import Case, cases, replica, small

from ratrain.program.actions import Action, Kind, Lane
from ratrain.program.passes.clipping import clip_global_norm
from ratrain.program.setup import Setup
from ratrain.program.skeletons import build
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.uses import FREE, READ, Uses
from ratrain.program.verify import Rule, verify

quick = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("name", "before"), [("ratrain", []), ("tuned", ["AllSynced"]), ("1f1b", ["AllSynced"])]
)
def test_the_norm_stands_ahead_of_all_updates_and_behind_the_barrier(
    name: str, before: list[str]
) -> None:
    program = small(name, clip=True)
    for rank in range(program.setup.ranks):
        kinds = [action.kind.name for action in program.lane(rank, Lane.UPDATE)]
        assert kinds[: len(before) + 1] == [*before, "ClipNorm"]
        assert set(kinds[len(before) + 1 :]) == {"UpdateShard"}


def test_all_norms_of_all_ranks_and_replicas_share_one_group() -> None:
    setup = Setup((replica((1, 2, 1), 4, 2), replica((2, 2), 3)))
    table = apply_strategy(strategy("ratrain"), setup, Choices(clip=True)).table
    norms = table.kind == Kind.ClipNorm
    assert norms.sum() == setup.ranks == 5
    assert len(set(table.group[norms].tolist())) == 1
    assert not np.isin(table.group[~norms], table.group[norms]).any()


@quick
@given(cases())
def test_saving_and_clipping_need_no_more_memory_than_the_state_they_wait_for(case: Case) -> None:
    without = replace(case, choices=replace(case.choices, save=False)).program
    saved = replace(case, choices=replace(case.choices, save=True)).program
    assert [b.total_bytes for b in verify(saved).bounds] == [
        b.total_bytes for b in verify(without).bounds
    ]


@quick
@given(cases())
def test_there_is_one_save_a_unit_in_the_order_of_updates(case: Case) -> None:
    assume(case.choices.save)
    program = case.program
    for rank in range(program.setup.ranks):
        updates = [a[1:] for a in program.lane(rank, Lane.UPDATE) if a.kind is Kind.UpdateShard]
        assert [action[1:] for action in program.lane(rank, Lane.DISK)] == updates


def test_a_circle_that_closes_through_the_norm_of_another_rank_is_spelled_out() -> None:
    """Rank 0 sees to its next views ahead of its last forward, and its own norm waits for nothing:
    what holds it back is rank 1's norm, whose gradient lacks that forward."""
    program = clip_global_norm(build("1f1b", Setup((replica((1, 1), 2, 2),))))
    compute = list(program.lane(0, Lane.COMPUTE))
    ready = compute.pop()
    assert ready.kind is Kind.AllReady
    compute.insert(compute.index(Action(Kind.F, 0, 0, 1)), ready)
    lanes = {**program.lanes, (0, Lane.COMPUTE): tuple(compute)}
    lanes[0, Lane.UPDATE] = program.lane(0, Lane.UPDATE)[1:]  # no AllSynced
    table = replace(program, lanes=lanes).table
    uses, first_rank = table.uses, table.rank == 0
    late = np.flatnonzero(first_rank & np.isin(table.kind, [Kind.ClipNorm, Kind.UpdateShard]))
    reduction = np.flatnonzero(first_rank & (table.kind == Kind.GradSync))
    gradient = uses.state == table.states.start("gradient")
    lost = gradient & (uses.mode == READ) & np.isin(uses.op, late)
    op = np.where(gradient & (uses.mode == FREE), reduction, uses.op)
    kept = Uses(*(column[~lost] for column in (op, uses.state, uses.version, uses.mode)))
    (finding,) = verify(replace(table, uses=kept)).findings
    assert finding.rule is Rule.DEADLOCK
    norms = "0ClipNorm on rank 0, lane update waits for 1ClipNorm on rank 1, lane update"
    assert norms in finding.message
