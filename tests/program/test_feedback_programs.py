"""Error feedback: residuals are states that outlive the step, read and written by reductions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from made import Case, cases, replica, small

from ratrain.errors import ProgramError
from ratrain.program.families import FAMILIES
from ratrain.program.kind import Kind
from ratrain.program.passes.feedback import feed_errors_back
from ratrain.program.program import Program
from ratrain.program.setup import Accumulation, Averages, Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.text import read_text, write_text
from ratrain.program.text.family_groups import grouped, takes
from ratrain.program.uses import READ, WRITE
from ratrain.program.verify import verify

quick = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def made(
    residuals: int,
    *,
    accumulation: Accumulation = Accumulation.LOCAL,
    clip: bool = False,
    save: bool = False,
    data: int = 3,
) -> Program:
    choices = Choices(accumulation=accumulation, clip=clip, save=save, error_feedback=residuals)
    setup = Setup((replica((2, 2), 4, data, 2, True),))
    return apply_strategy(strategy("ratrain"), setup, choices)


def uses(program: Program, family: str, mode: int) -> list[tuple[str, int, int]]:
    """(kind, unit, version) of the ops that read or write a family's states."""
    table = program.table
    start, count = table.states.start(family), table.states.by_name[family].count
    of_family = (table.uses.state >= start) & (table.uses.state < start + count)
    rows = np.flatnonzero(of_family & (table.uses.mode == mode))
    return sorted(
        (
            Kind(int(table.kind[table.uses.op[row]])).name,
            int(table.uses.state[row]) - start,
            int(table.uses.version[row]),
        )
        for row in rows
    )


@quick
@given(cases())
def test_residuals_take_a_gradient_of_each_unit_that_is_reduced_and_nothing_else(
    case: Case,
) -> None:
    without = replace(case, choices=replace(case.choices, error_feedback=0)).program
    with_it = case.program
    copies = case.choices.error_feedback if without.setup.reduces else 0
    for before, after in zip(verify(without).bounds, verify(with_it).bounds, strict=True):
        units = with_it.table.states.units
        sizes = [
            unit.gradient_bytes * bool(units.reduced[g])
            for g, unit in enumerate(u for m in with_it.setup.members for u in m.units)
            if units.rank[g] == after.rank
        ]
        assert after.total_bytes - before.total_bytes == copies * sum(sizes)
        residual = {"residual", "residual_next"}
        assert sum(after.by_family.get(name, 0) for name in residual) == copies * sum(sizes)


@quick
@given(cases())
def test_a_program_that_feeds_errors_back_is_read_as_it_was_written(case: Case) -> None:
    assume(case.choices.error_feedback and case.program.setup.reduces)
    text = write_text(case.program)
    assert f"\nerror_feedback {case.choices.error_feedback}\n" in text
    assert "error-feedback" in text.splitlines()[1].split()
    assert read_text(text) == case.program
    assert verify(case.program).sound


def test_a_reduction_reads_what_the_one_before_left() -> None:
    once = made(1)
    count = len(once.table.states.units.rank)
    assert uses(once, "residual", READ) == [("GradSync", g, 0) for g in range(count)]
    assert uses(once, "residual", WRITE) == [("GradSync", g, 1) for g in range(count)]
    each = made(1, accumulation=Accumulation.SHARDED)
    turns = [(g, m) for g in range(count) for m in range(4)]
    assert uses(each, "residual", READ) == [("GradSync", g, m) for g, m in turns]
    assert uses(each, "residual", WRITE) == [("GradSync", g, m + 1) for g, m in turns]


@pytest.mark.parametrize("accumulation", Accumulation)
def test_where_a_step_may_be_skipped_updates_replace_the_residual(
    accumulation: Accumulation,
) -> None:
    program = made(2, accumulation=accumulation, clip=True)
    count = len(program.table.states.units.rank)
    syncs = 4 if accumulation is Accumulation.SHARDED else 1
    assert uses(program, "residual", READ) == [("GradSync", g, 0) for g in range(count)]
    assert uses(program, "residual", WRITE) == [("UpdateShard", g, 1) for g in range(count)]
    assert ("UpdateShard", 0, syncs) in uses(program, "residual_next", READ)
    assert len(uses(program, "residual_next", WRITE)) == syncs * count


@pytest.mark.parametrize(("residuals", "writer"), [(1, Kind.GradSync), (2, Kind.UpdateShard)])
def test_what_writes_the_next_residual_waits_for_the_save_of_this_one(
    residuals: int, writer: Kind
) -> None:
    table = made(residuals, save=True, clip=residuals == 2).table
    start = table.states.start("residual")
    count = table.states.by_name["residual"].count
    across = table.edges.across
    about = (across.state >= start) & (across.state < start + count)
    saves = about & (table.kind[across.source] == Kind.Save)
    assert saves.sum() == count
    assert (table.kind[across.target[saves]] == writer).all()


def test_one_replica_keeps_no_residuals() -> None:
    assert write_text(made(1, data=1)) == write_text(made(0, data=1))


def test_a_program_without_it_says_nothing_of_it() -> None:
    text = write_text(small("ratrain", clip=True, save=True))
    assert "feedback" not in text
    table = small("ratrain").table
    for family in ("residual", "residual_next"):
        assert family in FAMILIES and table.states.by_name[family].count == 0


def test_residuals_are_shown_by_a_name_of_their_own() -> None:
    assert grouped({"residual": 3, "residual_next": 4}) == {"residual": 7}
    assert takes("residual") == takes("residual_next") == "rounding residuals take"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"error_feedback": 3}, "3 residuals of each gradient"),
        ({"error_feedback": 1, "averages": Averages.LOCAL_SGD}, "sent in every step"),
        ({"error_feedback": 1, "period": 2}, "a program of one step"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(changes: dict[str, int], problem: str) -> None:
    with pytest.raises(ProgramError, match=problem):
        replace(Setup((replica((2, 2), 4, 2),)), **changes)


def test_the_pass_moves_nothing() -> None:
    program = made(0)
    fed = feed_errors_back(program, 1)
    assert fed.lanes == program.lanes and fed.passes == (*program.passes, "error-feedback")
