"""The benchmark of unequal devices: what it compares with, and one of its rows for real (root)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ratrain.describe.presets import load_cluster
from ratrain.lab.needs import missing

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FOLDERS = (BENCHMARKS / "unequal", BENCHMARKS / "runtime")
PROGRAM = BENCHMARKS / "unequal" / "unequal.py"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a module of the benchmark, which stands in no package; none stays behind."""
    before = set(sys.modules)
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))
    yield import_module
    names = {file.stem for folder in FOLDERS for file in folder.glob("*.py")}
    for name in names & (set(sys.modules) - before):
        del sys.modules[name]


def test_equal_layers_on_a_whole_and_half_a_processor_can_gain_one_half(
    module: Callable[[str], Any],
) -> None:
    split = module("split")
    costs = split.BlockCosts(embedding_s=0.0, layer_s=0.01, head_s=0.0)
    assert split.best_split(costs, 12, (1.0, 0.5), 24) == (8, 4)
    assert split.ideal_gain(costs, 12, (1.0, 0.5), 1_000_000) == pytest.approx(1.5)
    assert split.ideal_gain(costs, 12, (0.5, 0.5), 24) == pytest.approx(1.0)


def test_few_micro_batches_lessen_the_gain_because_the_pipeline_fills(
    module: Callable[[str], Any],
) -> None:
    split = module("split")
    costs = split.BlockCosts(embedding_s=0.0, layer_s=0.01, head_s=0.0)
    assert costs.step_s((8, 4), (1.0, 0.5), 1) == pytest.approx(0.16)
    assert costs.step_s((8, 4), (1.0, 0.5), 11) == pytest.approx(0.96)
    gains = [split.ideal_gain(costs, 12, (1.0, 0.5), count) for count in (4, 24, 1000)]
    assert gains == sorted(gains)
    assert gains[0] < 1.4
    assert gains[-1] > 1.49


def test_a_heavy_head_takes_layers_away_from_its_stage(module: Callable[[str], Any]) -> None:
    split = module("split")
    costs = split.BlockCosts(embedding_s=0.0, layer_s=0.01, head_s=0.03)
    assert split.equal_split(12, 5) == (3, 3, 2, 2, 2)
    assert split.best_split(costs, 12, (1.0, 1.0, 1.0), 24) == (5, 5, 2)
    assert split.best_split(costs, 12, (0.5, 1.0), 24) == (5, 7)
    assert costs.stages_s((5, 7), (0.5, 1.0)) == pytest.approx((0.1, 0.1))


def test_a_case_of_unequal_shares_is_a_cluster_of_such_devices(
    module: Callable[[str], Any], tmp_path: Path
) -> None:
    cases = module("cases")
    shares = (0.25, 0.25, 0.5, 1.0)
    case = cases.Case("four", pipeline=2, data=2, shares=shares, layers=(3, 5))
    assert cases.read_case(case.write(tmp_path)) == case
    devices = load_cluster(tmp_path / "cluster.toml").devices(4)
    assert tuple(d.kind.lab.cpus for d in devices if d.kind.lab is not None) == shares


def test_every_row_leaves_the_lab_a_quarter_of_two_processors(module: Callable[[str], Any]) -> None:
    for row in module("rows").ROWS:
        assert sum(row.shares) <= 1.75
        for shape in row.peers:
            assert shape.ranks <= len(row.shares)
            assert row.case.sequences % shape.data == 0


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(not os.environ.get("RATRAIN_SOAK"), reason="a minute: by `make soak`")
@pytest.mark.skipif(bool(missing()), reason=f"no lab on this machine: {'; '.join(missing())}")
def test_planned_and_equal_layers_train_alike_on_unequal_devices(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(PROGRAM), "--row", "split, 1 Gbit/s", "--repetitions", "1"]
    subprocess.run([*command, "--json", str(out)], check=True, timeout=280)
    (row,) = json.loads(out.read_text())
    planned, equal = row["figures"]
    assert not planned["outcome"]["failure"]
    assert not equal["outcome"]["failure"]
    layers_of = dict(zip(planned["shares"], planned["layers"], strict=True))
    assert layers_of[0.5] < layers_of[1.0]
    assert equal["layers"] == [6, 6]
    assert planned["outcome"]["losses"] == equal["outcome"]["losses"]
