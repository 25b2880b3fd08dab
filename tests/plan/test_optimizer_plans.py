"""Plans of every optimizer: their bytes are billed and proved, and whole matrices stay whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from random_jobs import job

from ratrain.describe.job import LayoutSpec
from ratrain.describe.optimizers import OPTIMIZERS
from ratrain.describe.train import TrainSpec
from ratrain.errors import SpecError
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.search.misfit import planned
from ratrain.program.kind import Kind
from ratrain.program.verify import verify

SMALL = job("small-llama", "cpu-lab", 4, 8, budget_bytes=400_000_000)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_a_search_finds_is_what_is_proved(name: str) -> None:
    search = planned(replace(SMALL, train=TrainSpec(optimizer=name)))
    for tried in search.tried[:2]:
        layout, mode = tried.plan.layout, tried.plan.mode
        program = Case(tried.plan).program
        assert tried.bound_bytes == max(b.total_bytes for b in verify(program).bounds)
        if OPTIMIZERS[name].whole:
            assert layout.tensor == 1 and (layout.data == 1 or mode.sharding == 0)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if OPTIMIZERS[name].whole])
@pytest.mark.parametrize(
    ("layout", "says"),
    [(LayoutSpec(1, 4), "sharded states"), (LayoutSpec(2, 1, 2), "a tensor group of 2")],
)
def test_whole_matrices_are_not_divided(name: str, layout: LayoutSpec, says: str) -> None:
    asked = replace(SMALL, train=TrainSpec(optimizer=name), layout=layout)
    with pytest.raises(SpecError, match=f"{name} needs whole matrices, which {says} would divide"):
        case_of(asked)


def test_an_update_is_priced_by_what_it_moves_and_multiplies() -> None:
    asked = replace(SMALL, layout=LayoutSpec(4, 1))
    works = {
        name: case_of(replace(asked, train=TrainSpec(optimizer=name))).costs.work[Kind.UpdateShard]
        for name in ("lion", "adamw", "muon")
    }
    moved = {name: work.volume_bytes.sum() for name, work in works.items()}
    assert moved["lion"] == pytest.approx(moved["adamw"] * 20 / 28)
    assert works["muon"].fixed_s.sum() > 2 * works["adamw"].fixed_s.sum()
