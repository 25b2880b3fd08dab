"""The skeleton, the pass and the kind of op of docs/how-to/extending.md, on real processes."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew
from extending_page import MODULES, write_files
from registered import declared_inside
from runs_made import Setting
from training import RankResult, train, train_rank

from ratrain.runtime.run_folder import RunFolder

RATRAIN = ("forward-recovery", "layerwise-state-pipeline", "update-prefetch")
EVERYTHING = Setting(
    "ratrain",
    2,
    2,
    virtual=2,
    skeleton="waves",
    passes=(*RATRAIN, "offload-most", "weight-average"),
    recovery="everywhere",
    sequences=16,
)


def with_page(
    rank: int,
    world_size: int,
    setting: Setting,
    folder: Path,
    delays: int | None,
    checkpoint: Path | None = None,
    saves: bool = False,
) -> RankResult:
    """One rank of `train`, in a process that knows the page's modules; checks its averages."""
    with declared_inside(folder / "page"):
        for name in MODULES:
            import_module(name)
        averaging: Any = import_module("weight_average")
        seen: dict[str, list[torch.Tensor]] = {}
        averages: dict[str, torch.Tensor] = {}
        add = averaging.add

        def recorded(rank_ops: Any, op: Any, step: int) -> None:
            unit = rank_ops.unit(op)
            averages[unit.name] = average = unit.part.beside["average"].tensor
            seen.setdefault(unit.name, [average.clone()])
            add(rank_ops, op, step)
            seen[unit.name].append(unit.part.weights.clone())

        averaging.add = recorded
        result = train_rank(rank, world_size, setting, folder, delays, checkpoint, saves)
        assert set(averages) == set(result.parts)
        for name, (first, *weights) in seen.items():
            assert not torch.equal(first, weights[0])
            expected = first.double()
            for new in weights:
                expected = expected + (new.double() - expected) / 100
            assert len(weights) == setting.steps
            assert torch.allclose(averages[name].double(), expected, atol=1e-6)
        return result


@pytest.mark.slow
@pytest.mark.parametrize("delays", [None, 7], ids=["at once", "with delays"])
def test_what_the_page_adds_trains_with_the_bits_of_plain_1f1b(
    crew: Crew, tmp_path: Path, delays: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Setting("1f1b", 2, 2, sequences=16)
    usual = train(crew, plain, tmp_path / "plain")
    monkeypatch.setattr("training.train_rank", with_page)
    folder = tmp_path / "mine"
    with declared_inside(write_files(folder / "page")):
        for name in MODULES:
            import_module(name)
        mine = train(crew, EVERYTHING, folder, delays)
    assert not mine.differences(usual)
    assert all(p <= b for p, b in zip(mine.ledger_peaks, mine.bounds, strict=True))
    assert all(0 < p <= b for p, b in zip(mine.host_peaks, mine.host_bounds, strict=True))


@pytest.mark.slow
def test_the_collective_of_the_page_runs(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(data=4, sequences=8)
    direct = train(crew, setting, tmp_path / "direct")
    monkeypatch.setattr("training.train_rank", with_page)
    folder = tmp_path / "mine"
    with declared_inside(write_files(folder / "page")):
        for name in MODULES:
            import_module(name)
        halved = train(crew, replace(setting, collective="halving"), folder)
        spec = RunFolder(folder / "run").read_spec()
    assert (spec.collective, spec.sum_order) == ("halving", "(0+2)+(1+3)")
    assert halved.loss_values == pytest.approx(direct.loss_values, rel=1e-5)
    assert halved.differences(direct), "two orders of summation"
