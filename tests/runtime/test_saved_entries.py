"""What checkpoints hold is declared: an entry of somebody's own is saved, resumed, moved to other
layouts and kept by survivors as weights are."""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from crew import Crew
from extending_page import write_files
from launched import assert_same_end, cut_short, loss_bits, made, start
from registered import declared_inside
from runs_made import CONFIG, Setting
from torch import from_numpy
from training import RankResult, train, train_rank

from ratrain.checkpoint.listing import listed
from ratrain.checkpoint.own import begun_with, own_kind
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.describe.huggingface import model_from_config
from ratrain.describe.saved import Regrouped, Saved, declare_saved
from ratrain.errors import ProgramError
from ratrain.models.division import WHOLE
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.plugins import EXTENSIONS
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.step.tensor_parts import StoredParts, stored_degrees

AVERAGED = Setting("1f1b", 2, 2, passes=("weight-average",), sharding=0, steps=4, every=1, keep=9)
slow = pytest.mark.slow


# ---- what an entry begins with ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("regrouped", "first", "second"),
    [
        (Regrouped.MEAN, ["mine"], ["mine"]),
        (Regrouped.SUM, ["mine.0of3", "mine.1of3", "mine.2of3"], []),
        (Regrouped.ZERO, [], []),
    ],
)
def test_where_others_have_saved_it_an_entry_begins_as_it_is_declared(
    regrouped: Regrouped, first: list[str], second: list[str]
) -> None:
    stored = ["weights", *(own_kind("mine", place, 3) for place in range(3))]
    with declared_inside():
        declare_saved(Saved("mine", "mine", begins="", regrouped=regrouped))
        assert begun_with("mine.1of3", stored) == ["mine.1of3"]
        assert begun_with("mine.0of2", stored) == first
        assert begun_with("mine.1of2", stored) == second


@pytest.mark.parametrize(
    ("begins", "expected"), [("weights", ["weights"]), ("", []), (None, ["mine"])]
)
def test_where_nobody_has_saved_it_an_entry_begins_as_another_or_with_zero_or_is_missed(
    begins: str | None, expected: list[str]
) -> None:
    with declared_inside():
        declare_saved(Saved("mine", "mine", begins=begins))
        assert begun_with("mine", ["moment1", "weights"]) == expected
        assert begun_with("mine.0of2", ["moment1", "weights"]) == expected


def test_two_entries_of_one_name_are_refused() -> None:
    with declared_inside(), pytest.raises(ProgramError, match="residual is declared twice"):
        declare_saved(Saved("residual", "mine"))


def test_an_entry_of_a_family_that_nobody_declares_is_refused(tmp_path: Path) -> None:
    with declared_inside():
        declare_saved(Saved("mine", "nowhere", begins=""))
        with pytest.raises(ProgramError, match="the family nowhere, which nobody declares"):
            made(tmp_path, Setting("1f1b", 2, 2))


# ---- real runs -------------------------------------------------------------------------------


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """The page's weight average, here and in every process that is started."""
    folder = write_files(tmp_path / "page")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv(EXTENSIONS, "weight_average")
    with declared_inside(folder):
        import_module("weight_average")
        yield folder


def entry_of(folder: RunFolder, step: int, kind: str = "average") -> npt.NDArray[np.float32]:
    """One kind of state of the whole model behind a step, whatever the degree that saved it."""
    paths = {checkpoint.step: checkpoint.path for checkpoint in listed(folder.checkpoints)}
    checkpoint, spec = open_checkpoint(paths[step]), model_from_config(CONFIG)
    degrees = stored_degrees(spec, checkpoint.manifest.meta.units)
    parts = StoredParts(spec, degrees, lambda *of: from_numpy(checkpoint.read_range(*of)))
    sizes = {unit: unit_layout(spec, unit).size for unit in unit_names(spec)}
    whole = [parts.read_range(u, WHOLE, kind, 0, size).numpy() for u, size in sizes.items()]
    return np.concatenate(whole)


@slow
@pytest.mark.usefixtures("page")
def test_a_run_s_own_entry_is_saved_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", AVERAGED)
    start(whole)
    averages = [entry_of(whole, step) for step in range(1, 5)]
    assert not np.array_equal(averages[1], entry_of(whole, 2, "weights"))
    for step, (before, after) in enumerate(pairwise(averages), 2):
        new = entry_of(whole, step, "weights")
        assert np.allclose(after, before + (new - before) * np.float32(0.01), atol=1e-7)
    same = cut_short(whole, tmp_path / "same", AVERAGED, 2)
    start(same)
    assert loss_bits(same) == loss_bits(whole)
    assert_same_end(same, whole)


@slow
@pytest.mark.usefixtures("page")
@pytest.mark.parametrize(
    "other",
    [
        replace(AVERAGED, pipeline=1, sharding=3),
        replace(AVERAGED, pipeline=4, data=1),
        replace(AVERAGED, tensor=2, data=1, pipeline=1),
    ],
    ids=["sharded", "deeper", "a tensor group"],
)
def test_another_layout_goes_on_with_a_run_s_own_entry(other: Setting, tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", AVERAGED)
    start(whole)
    moved = cut_short(whole, tmp_path / "moved", other, 2)
    start(moved)
    if other.data == AVERAGED.data:
        assert np.array_equal(entry_of(moved, 4), entry_of(whole, 4))
    assert np.allclose(entry_of(moved, 4), entry_of(whole, 4), atol=1e-5)
    assert not np.allclose(entry_of(moved, 4), entry_of(moved, 4, "weights"), atol=1e-3)


@slow
@pytest.mark.usefixtures("page")
def test_a_checkpoint_without_a_run_s_own_entry_begins_it_with_the_weights(tmp_path: Path) -> None:
    plain = replace(AVERAGED, passes=None)
    whole = made(tmp_path / "whole", plain)
    start(whole)
    later = cut_short(whole, tmp_path / "later", AVERAGED, 2)
    start(later)
    before, new = (entry_of(whole, step, "weights") for step in (2, 3))
    expected = before + (new - before) * np.float32(0.01)
    assert np.allclose(entry_of(later, 3), expected, atol=1e-7)
    assert loss_bits(later) == loss_bits(whole)


@slow
@pytest.mark.usefixtures("page")
def test_replicas_that_update_apart_have_each_its_own_entry(tmp_path: Path) -> None:
    apart = replace(
        AVERAGED, name="ratrain", average_every=2, averages="early-start", sharding=None
    )
    whole = made(tmp_path / "whole", apart)
    start(whole)
    paths = {checkpoint.step: checkpoint.path for checkpoint in listed(whole.checkpoints)}
    kinds = open_checkpoint(paths[2]).manifest.kinds_of("0")
    assert {own_kind("average", place, 2) for place in range(2)} < set(kinds)
    same = cut_short(whole, tmp_path / "same", apart, 2)
    start(same)
    assert_same_end(same, whole)


def with_average(
    rank: int, world_size: int, setting: Setting, folder: Path, *more: Any
) -> RankResult:
    """One rank of `train`, in a process that knows the page's average."""
    with declared_inside(folder.parent / "page"):
        import_module("weight_average")
        return train_rank(rank, world_size, setting, folder, *more)


@slow
@pytest.mark.usefixtures("page")
def test_survivors_have_an_entry_of_one_s_own_live(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.train_rank", with_average)
    before = replace(AVERAGED, steps=2)
    after = replace(AVERAGED, pipeline=4, data=1)
    train(crew, before, tmp_path / "before", saves=True)
    live = train(crew, after, tmp_path / "live", live=True, saves=True)
    saved = tmp_path / "before" / "run" / "checkpoints" / "step-00000002"
    read = train(crew, after, tmp_path / "read", checkpoint=saved, saves=True)
    assert len(live.losses) == 2 and not live.differences(read)
    a, b = (entry_of(RunFolder(tmp_path / name / "run"), 4) for name in ("live", "read"))
    assert np.array_equal(a, b)
