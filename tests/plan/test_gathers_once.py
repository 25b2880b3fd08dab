"""How often sharded views are gathered: with pe-zero as often, whatever the micro-batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ratrain.describe.job import Batch, LayoutSpec
from ratrain.plan.case.case import case_of
from ratrain.plan.layout.jobs import load_job
from ratrain.program.kind import Kind

JOB = Path(__file__).parents[2] / "examples" / "small.toml"


def transfers(schedule: str, layout: LayoutSpec, micro_batches: int) -> Counter[Kind]:
    """Of each kind of gather and reduction, how many each unit has in a step."""
    job = load_job(JOB)
    job = replace(
        job,
        cluster=replace(job.cluster, devices=layout.pipeline * layout.data),
        batch=Batch(layout.data * micro_batches),
        layout=layout,
        schedule=replace(job.schedule, name=schedule, recovery="auto"),
    )
    table = case_of(job).program.table
    units = len(table.states.units.rank)
    kinds = (Kind.Gather_F, Kind.Gather_B, Kind.PrefetchW, Kind.GradSync)
    counts = {kind: int(table.is_any(kind).sum()) for kind in kinds}
    assert all(count % units == 0 for count in counts.values())
    return Counter({kind: count // units for kind, count in counts.items() if count})


@pytest.mark.parametrize(
    "layout", [LayoutSpec(1, data=2), LayoutSpec(1, data=4), LayoutSpec(2, data=2, virtual=2)]
)
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 16])
def test_pe_zero_gathers_twice_and_reduces_once_whatever_the_micro_batches(
    layout: LayoutSpec, micro_batches: int
) -> None:
    once_a_pass = {Kind.Gather_F: 1, Kind.Gather_B: 1, Kind.GradSync: 1}
    assert transfers("pe-zero", layout, micro_batches) == once_a_pass


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_level_3_under_1f1b_gathers_twice_for_every_micro_batch(micro_batches: int) -> None:
    counts = transfers("zero3-heavy", LayoutSpec(1, data=2), micro_batches)
    assert counts[Kind.Gather_F] == counts[Kind.Gather_B] == micro_batches
