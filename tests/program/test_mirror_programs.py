"""Mirrors beside any other passes: sound, and each owner's part is on two ranks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from made import Case, cases

from ratrain.program.kind import Kind
from ratrain.program.verify import verify


def mirrored(case: Case) -> Case:
    return replace(case, choices=replace(case.choices, mirror=True, optimizer_tier=""))


@given(cases().map(mirrored))
def test_any_passes_with_mirrors_are_sound(case: Case) -> None:
    assert not verify(case.program).findings


@given(st.builds(mirrored, cases()))
def test_each_unit_that_is_divided_is_mirrored_once_a_step(case: Case) -> None:
    program = case.program
    setup, table = program.setup, program.table
    mirrors = int(table.is_any(Kind.MirrorUpdate).sum())
    divided = [
        unit for member in setup.members for unit in member.units if setup.is_mirrored(unit.name)
    ]
    assert mirrors == len(divided)
    assert int(table.is_any(Kind.Commit).sum()) == (setup.ranks if setup.mirrored else 0)
