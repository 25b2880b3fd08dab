"""The picture of a schedule."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import Case, cases, replica, small
from rich.console import Console

from ratrain.program.actions import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.setup import Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.text.grid import draw, draw_rich, unit_clock
from ratrain.program.verify import Rule, verify

GOLDEN = Path(__file__).parent / "golden"
PICTURES = {
    "ratrain": small("ratrain"),
    "baseline-1f1b": small("baseline-1f1b"),
    "zb-h1": small("zb-h1", (1, 1, 1, 1)),
    "interleaved": small("interleaved", (1, 1, 1, 1)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_of_a_program_is_the_golden_one(name: str) -> None:
    """To renew: python tests/program/test_grid.py (and look at the difference)."""
    assert "\n".join(draw(PICTURES[name])) + "\n" == (GOLDEN / f"{name}.grid").read_text()


def single(name: str, stages: int, micro_batches: int) -> Program:
    setup = Setup((replica((1,) * stages, micro_batches),))
    return apply_strategy(strategy(name), setup, Choices())


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (4, 4), (4, 8), (8, 24)])
def test_unit_times_of_1f1b_and_gpipe_are_those_of_the_formula(
    stages: int, micro_batches: int
) -> None:
    """Both take (m + p - 1)(F + B) with B = 2 F: Narayanan et al. 2021, section 2."""
    for name in ("1f1b", "gpipe"):
        end = unit_clock(single(name, stages, micro_batches).table).end.max()
        assert end == 3 * (micro_batches + stages - 1)


@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 8), (8, 24)])
def test_unit_times_of_zero_bubble_are_those_of_the_formula(
    stages: int, micro_batches: int
) -> None:
    """ZB-H1's bubble is (p - 1)(F + B - W), a third of 1F1B's: Qi et al. 2023, section 3."""
    end = unit_clock(single("zb-h1", stages, micro_batches).table).end.max()
    assert end == 3 * micro_batches + stages - 1


@settings(max_examples=30, deadline=None)
@given(cases(max_micro_batches=4), st.integers(40, 120))
def test_no_line_is_longer_than_asked_for(case: Case, width: int) -> None:
    assert all(len(line) <= width for line in draw(case.program, width=width))


def test_a_cut_picture_says_so() -> None:
    lines = draw(single("1f1b", 4, 64), width=80)
    assert lines[-1].startswith("first ")
    assert lines[-1].endswith(" of 201 time units shown")


def stuck() -> Program:
    """1F1B whose second rank waits for a gradient before it sends what that gradient needs."""
    program = single("1f1b", 4, 8)
    compute = list(program.lane(1, Lane.COMPUTE))
    compute[1], compute[3] = compute[3], compute[1]
    return replace(program, lanes={**program.lanes, (1, Lane.COMPUTE): tuple(compute)})


def test_a_deadlock_shows_what_never_runs_and_marks_the_op_found() -> None:
    program = stuck()
    findings = verify(program).findings
    assert [finding.rule for finding in findings] == [Rule.DEADLOCK]
    lines = draw(program, {finding.op for finding in findings})
    assert lines[2].startswith("rank 1 .  F0")
    assert "| never: !B0" in lines[2]
    assert all("| never:" in line for line in lines[1:5])


def test_a_marked_op_of_another_lane_is_named_below() -> None:
    program = single("1f1b", 2, 2)
    op = next(i for i, kind in enumerate(program.table.kind) if kind == Kind.SEND_F)
    assert draw(program, {op})[-1] == "! 0SEND_F0 on rank 0, lane send_f"


def test_the_coloured_picture_has_the_same_letters() -> None:
    program = stuck()
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system="standard")
    for line in draw_rich(program, {1}):
        console.print(line)
    assert "\x1b[" in out.getvalue()
    assert [line.plain.rstrip() for line in draw_rich(program, {1})] == draw(program, {1})


if __name__ == "__main__":
    for name, program in PICTURES.items():
        (GOLDEN / f"{name}.grid").write_text("\n".join(draw(program)) + "\n")
