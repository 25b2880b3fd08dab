"""Lanes and kinds of op are declared once, and what executes and prices them knows every one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from registered import declared_inside

from ratrain.describe.job import LayoutSpec
from ratrain.errors import ProgramError
from ratrain.plan.case.case import case_of
from ratrain.plan.layout.jobs import load_job
from ratrain.program.kind import Cost, Kind, Lane, Scope, Waiting, declare_lane
from ratrain.program.rules import declare
from ratrain.program.text import read_text
from ratrain.runtime.step.ops import RankOps

TIED = """
[model]
name = "gpt-3.6b"
sequence_length = 2048
[cluster]
name = "a100-80g-dgx"
devices = 8
[batch]
sequences = 8
"""


@pytest.mark.parametrize("kind", tuple(Kind), ids=repr)
def test_a_kind_of_op_has_a_method_unless_it_only_waits(kind: Kind) -> None:
    only_waits = kind.is_barrier or kind.cost == Cost.RECOVERED_SUM
    assert callable(getattr(RankOps, kind.method or "none", None)) != only_waits


def test_the_planner_has_a_price_for_every_kind_of_op(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(TIED)
    job = replace(load_job(tmp_path / "job.toml"), layout=LayoutSpec(2, 4))
    assert set(case_of(job).costs.work) == set(Kind)


def test_no_two_lanes_and_no_two_kinds_of_op_have_a_name() -> None:
    with declared_inside():
        declare_lane("SHADOW", Waiting.DISK)
        with pytest.raises(ProgramError, match="the lane SHADOW is declared twice"):
            declare_lane("SHADOW", Waiting.DISK)
        declare("Shade", Lane.named("SHADOW"), Scope.UNIT, Kind.CopyW.uses)
        with pytest.raises(ProgramError, match="the kind of op Shade is declared twice"):
            declare("Shade", Lane.named("SHADOW"), Scope.UNIT, Kind.CopyW.uses)
    assert not Lane.has("SHADOW") and not Kind.has("Shade")


def test_a_kind_of_op_that_says_what_no_kind_does_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        declare("Shade", Lane.DISK, Scope.UNIT, Kind.CopyW.uses, colour="red")
    assert not Kind.has("Shade")


@pytest.mark.parametrize("word", ["COMPUTE", "Compute", "shadow"])
def test_a_word_that_names_no_lane_is_refused_with_those_that_do(word: str) -> None:
    text = (Path(__file__).parents[1] / "program/golden/baseline-1f1b.program").read_text()
    with pytest.raises(ProgramError, match="does not name a lane") as refused:
        read_text(text.replace("rank 0 compute", f"rank 0 {word}"))
    assert "compute, send_f" in str(refused.value)
