"""Residuals of error feedback in checkpoints: resumed, killed, and moved to other layouts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from launched import (
    assert_same_end,
    cut_short,
    killer,
    loss_bits,
    made,
    meanwhile,
    start,
    steps_done,
)
from runs_made import CONFIG, Setting, Unlike
from torch import Tensor, from_numpy

from ratrain.checkpoint.listing import listed
from ratrain.checkpoint.own import begun_with, own_kind, own_kinds, shared_kind
from ratrain.checkpoint.reader import Checkpoint, open_checkpoint
from ratrain.describe.huggingface import model_from_config
from ratrain.describe.saved import RESIDUAL
from ratrain.errors import RunFailed
from ratrain.models.division import WHOLE
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.step.tensor_parts import StoredParts, stored_degrees

slow = pytest.mark.slow
Floats = npt.NDArray[np.float32]
FED = Setting(gradient_wire="bf16", error_feedback=True, steps=6, every=3, keep=9).at((2, 2))
HALF = Setting(dtype="fp16", error_feedback=True, sequences=12, steps=3, every=3, keep=9)
SKIPPING = replace(HALF, overflow="unit", loss_scale=2.0**40, steps=4, every=0)
"""Every gradient overflows, so that a step changes nothing, and saves what it began with."""


@pytest.mark.parametrize("holders", [2, 3, 5])
def test_a_holder_begins_with_its_own_residual_or_the_first_with_all(holders: int) -> None:
    stored = ["moment1", "weights", *(own_kind(RESIDUAL, place, 3) for place in range(3))]
    begun = [begun_with(own_kind(RESIDUAL, place, holders), stored) for place in range(holders)]
    if holders == 3:
        assert begun == [[kind] for kind in stored[2:]]
    else:
        assert begun == [stored[2:], *[[]] * (holders - 1)]
    assert len(own_kinds(RESIDUAL, stored)) == 3 and not own_kinds(RESIDUAL, ["weights"])
    assert begun_with(own_kind(RESIDUAL, 0, holders), ["weights"]) == []


# ---- real runs -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """An undisturbed run of four ranks that fed errors back."""
    folder = made(tmp_path_factory.mktemp("whole"), FED)
    start(folder)
    return folder


@slow
def test_a_resumed_run_equals_the_uninterrupted_one(whole: RunFolder, tmp_path: Path) -> None:
    folder = cut_short(whole, tmp_path, FED, 3)
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)
    saved = open_checkpoint(listed(folder.checkpoints)[-1].path)
    assert {own_kind(RESIDUAL, 0, 2), own_kind(RESIDUAL, 1, 2)} < set(saved.kinds)
    assert not folder.notes.exists()


@slow
def test_a_run_that_forgot_its_residuals_would_go_on_otherwise(
    whole: RunFolder, tmp_path: Path
) -> None:
    """So that the test above can fail: from a checkpoint without them other losses follow."""
    plain = replace(FED, error_feedback=None)
    folder = cut_short(whole, tmp_path, plain, 3)
    start(folder)
    assert loss_bits(folder)[:4] == loss_bits(whole)[:4]
    assert loss_bits(folder)[4:] != loss_bits(whole)[4:]
    assert "holds residual, which the run has not: it is left out" in folder.notes.read_text()


@slow
def test_a_killed_run_goes_on_with_the_same_bits(whole: RunFolder, tmp_path: Path) -> None:
    folder = made(tmp_path, FED)
    with meanwhile(killer(folder, 1, lambda: steps_done(folder) >= 4)), pytest.raises(RunFailed):
        start(folder)
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)


@slow
def test_another_cut_of_the_pipeline_goes_on_with_the_same_bits(
    whole: RunFolder, tmp_path: Path
) -> None:
    """As many replicas: each takes over its own residuals."""
    folder = cut_short(whole, tmp_path, replace(FED, name="zb-h1", sharding=0).at((1, 2)), 3)
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)


@slow
def test_a_checkpoint_without_residuals_begins_with_zero_and_says_so(tmp_path: Path) -> None:
    without = replace(FED, error_feedback=None).at((1, 2))
    plain = made(tmp_path / "plain", without)
    start(plain)
    folder = cut_short(plain, tmp_path / "fed", replace(FED).at((1, 2)), 3)
    start(folder)
    assert loss_bits(folder)[:4] == loss_bits(plain)[:4]
    assert loss_bits(folder)[5:] != loss_bits(plain)[5:]
    note = "step-00000003 holds no residual: it begins with zero"
    assert note in folder.notes.read_text()


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of fp16 on two replicas of two-rank tensor groups."""
    folder = made(tmp_path_factory.mktemp("half"), replace(HALF, tensor=2).at((1, 2)))
    start(folder)
    return folder


@pytest.mark.matrix
@slow
@pytest.mark.parametrize(
    ("setting", "holders"),
    [
        (SKIPPING.at((1, 2)), 2),
        (SKIPPING.at((2, 2)), 2),
        (SKIPPING.at((1, 3)), 3),
        (replace(SKIPPING, sharding=0).at((1, 4)), 4),
    ],
    ids=["undivided", "deeper", "three replicas", "four replicas"],
)
def test_a_skipped_step_on_any_layout_saves_the_residuals_that_were_saved(
    setting: Setting, holders: int, half: RunFolder, tmp_path: Path
) -> None:
    """What all replicas together have not sent is the same; so are weights and moments."""
    folder = cut_short(half, tmp_path, setting, 3)
    start(folder)
    before, after = (open_checkpoint(listed(run.checkpoints)[-1].path) for run in (half, folder))
    assert (before.manifest.meta.step, after.manifest.meta.step) == (3, 4)
    for kind in ("weights", "moment1", "moment2"):
        assert np.array_equal(_all(kind, before), _all(kind, after))
    old = [_all(own_kind(RESIDUAL, place, 2), before) for place in range(2)]
    new = [_all(own_kind(RESIDUAL, place, holders), after) for place in range(holders)]
    assert all(np.any(residual) for residual in old)
    if holders == 2:
        assert all(np.array_equal(a, b) for a, b in zip(old, new, strict=True))
    else:
        assert np.array_equal(new[0], old[0] + old[1])
        assert not any(np.any(residual) for residual in new[1:])
        assert f"the run has {holders}" in folder.notes.read_text()


def _all(kind: str, checkpoint: Checkpoint) -> Floats:
    """One kind of state of the whole model, whatever the tensor degree that saved it."""
    spec = model_from_config(CONFIG)

    def read(name: str, kind: str, low: int, high: int) -> Tensor:
        return from_numpy(checkpoint.read_range(name, kind, low, high))

    parts = StoredParts(spec, stored_degrees(spec, checkpoint.manifest.meta.units), read)
    return np.concatenate(
        [
            parts.read_range(unit, WHOLE, kind, 0, unit_layout(spec, unit).size).numpy()
            for unit in unit_names(spec)
        ]
    )


@slow
def test_what_ranks_allocate_stays_within_the_bound(tmp_path: Path) -> None:
    wide = (("hidden_size", 256), ("intermediate_size", 512), ("num_hidden_layers", 2))
    setting = replace(FED, model=wide, sequence_length=64, micro_batch=16, sequences=64, steps=2)
    items = json.loads((made(tmp_path / "free", setting).path / "case.json").read_text())
    bound = max(sum(of_rank.values()) for of_rank in items["bound_items"])
    assert all(of_rank["residual"] > 0 for of_rank in items["bound_items"])
    run = made(tmp_path / "held", replace(setting, budget_bytes=bound))
    start(run)
    for rank in range(4):
        peaks = [row["ranks"][rank]["allocated_peak_bytes"] for row in run.read_metrics()]
        assert 0 < max(peaks) <= bound


MEMBERS = replace(
    FED,
    unlike=(Unlike((1, 3), 8),),
    serving=(("all",), ("0, 3-5", "1-2, 6-7")),
    pipeline=1,
    data=1,
)
"""The first stage has one holder and sends nothing; two members share the second."""


@slow
def test_residuals_of_stages_that_unlike_numbers_of_members_share_are_saved_and_resumed(
    tmp_path: Path,
) -> None:
    undisturbed = made(tmp_path / "whole", MEMBERS)
    start(undisturbed)
    folder = cut_short(undisturbed, tmp_path / "cut", MEMBERS, 3)
    start(folder)
    assert loss_bits(folder) == loss_bits(undisturbed)
    assert_same_end(folder, undisturbed)
    manifest = open_checkpoint(listed(folder.checkpoints)[-1].path).manifest
    assert not any(shared_kind(kind) == RESIDUAL for kind in manifest.kinds_of("0"))
    assert {own_kind(RESIDUAL, 0, 2), own_kind(RESIDUAL, 1, 2)} < set(manifest.kinds_of("h"))
    assert not folder.notes.exists()


@slow
def test_residuals_of_members_move_to_replicas_and_the_note_says_so(tmp_path: Path) -> None:
    undisturbed = made(tmp_path / "whole", MEMBERS)
    start(undisturbed)
    folder = cut_short(undisturbed, tmp_path / "moved", FED, 3)
    start(folder)
    ours, theirs = ([float.fromhex(bits) for bits in loss_bits(f)] for f in (folder, undisturbed))
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert "holds no residual of 2 units: it begins with zero" in folder.notes.read_text()
