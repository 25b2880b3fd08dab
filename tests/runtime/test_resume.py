"""What is saved goes on: bit by bit on its layout, to rounding on any other, past any damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from launched import (
    assert_same_end,
    cut_short,
    loss_bits,
    made,
    meanwhile,
    saved_steps,
    start,
    steps_done,
    wait_until,
)
from runs_made import CONFIG, Setting, write_text

from ratrain.checkpoint.listing import listed
from ratrain.checkpoint.manifest import parse, render
from ratrain.errors import CannotResume, RunFailed
from ratrain.runtime.run_folder import RunFolder

STEPS, HALF = 12, 6
SETTING = Setting(pipeline=2, data=2, steps=STEPS, every=2, keep=9)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """An undisturbed run that kept all its checkpoints."""
    folder = made(tmp_path_factory.mktemp("whole"), SETTING)
    start(folder)
    assert saved_steps(folder) == [2, 4, 6, 8, 10, 12]
    return folder


def test_the_same_layout_goes_on_bit_by_bit(whole: RunFolder, tmp_path: Path) -> None:
    folder = cut_short(whole, tmp_path, SETTING, HALF)
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)
    assert not folder.notes.exists()


def test_another_schedule_goes_on_bit_by_bit(whole: RunFolder, tmp_path: Path) -> None:
    folder = cut_short(whole, tmp_path, replace(SETTING, name="zb-h1", sharding=0), HALF)
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)


@pytest.mark.matrix
@pytest.mark.parametrize("layout", [(1, 1), (4, 1), (1, 4)], ids=["p1d1", "p4d1", "p1d4"])
def test_another_layout_goes_on_with_the_same_numbers(
    layout: tuple[int, int], whole: RunFolder, tmp_path: Path
) -> None:
    folder = cut_short(whole, tmp_path, SETTING.at(layout), HALF)
    start(folder)
    theirs = [row["loss"] for row in whole.read_metrics()]
    ours = [row["loss"] for row in folder.read_metrics()]
    assert ours == pytest.approx(theirs, rel=2e-5)
    assert len(ours) == STEPS and ours[HALF] != ours[HALF - 1]


def test_steps_that_overflowed_are_remembered_as_no_updates(tmp_path: Path) -> None:
    setting = replace(SETTING, dtype="fp16", loss_scale=2.0**23)
    overflowed = made(tmp_path / "whole", setting)
    start(overflowed)
    folder = cut_short(overflowed, tmp_path / "rest", setting, HALF)
    states = [
        checkpoint.manifest.meta.state
        for checkpoint in listed(folder.checkpoints)
        if checkpoint.manifest
    ]
    assert 0 < states[-1]["updates"] < HALF, states
    start(folder)
    assert loss_bits(folder) == loss_bits(overflowed)
    assert_same_end(folder, overflowed)


def test_a_checkpoint_that_does_not_count_updates_goes_on_with_its_steps(
    whole: RunFolder, tmp_path: Path
) -> None:
    folder = cut_short(whole, tmp_path, SETTING, HALF)
    path = folder.checkpoints / "step-00000006" / "manifest.json"
    manifest = parse(path.read_bytes())
    assert manifest.meta.state["updates"] == HALF
    path.write_bytes(render(replace(manifest, meta=replace(manifest.meta, state={}))))
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)


def test_a_finished_run_is_left_as_it_is(whole: RunFolder, tmp_path: Path) -> None:
    folder = cut_short(whole, tmp_path, SETTING, STEPS)
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)


# ---- damage ---------------------------------------------------------------------------------


def truncated(path: Path) -> None:
    file = path / "rank-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def without_its_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def flipped(path: Path) -> None:
    """One bit of one rank's tensors: it shows only when that rank reads it."""
    file = path / "rank-00002.safetensors"
    content = bytearray(file.read_bytes())
    content[-1000] ^= 4
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncated, without_its_manifest, flipped])
def test_a_damaged_newest_checkpoint_is_told_and_the_one_before_it_is_used(
    damage: object, whole: RunFolder, tmp_path: Path
) -> None:
    folder = cut_short(whole, tmp_path, SETTING, HALF)
    damage(folder.checkpoints / "step-00000006")  # type: ignore[operator]
    start(folder)
    (note,) = folder.notes.read_text().splitlines()
    assert note.startswith("step-00000006 is damaged and skipped"), note
    assert note.endswith("the run resumes from step-00000004")
    assert ("is altered: bytes" in note) == (damage is flipped)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)


@pytest.mark.parametrize("damage", [truncated, flipped])
def test_damage_to_every_checkpoint_is_one_message_and_no_new_beginning(
    damage: object, whole: RunFolder, tmp_path: Path
) -> None:
    folder = cut_short(whole, tmp_path, SETTING, 4)
    for path in folder.checkpoints.glob("step-*"):
        damage(path)  # type: ignore[operator]
    with pytest.raises(CannotResume) as error:
        start(folder)
    assert error.value.exit_code == 7
    message = str(error.value)
    assert "all 2 are damaged: step-00000004: " in message, message
    assert f"move {folder.checkpoints} away" in message
    assert "--resume" not in message, "there is nothing to resume from"
    assert steps_done(folder) == 4


def test_a_checkpoint_of_another_model_is_refused(whole: RunFolder, tmp_path: Path) -> None:
    folder = cut_short(whole, tmp_path, SETTING.at((1, 1)), HALF)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace(str(CONFIG["rms_norm_eps"]), "0.01"))
    with pytest.raises(
        CannotResume, match="was written with a different configuration of 'minute'"
    ):
        start(folder)


@pytest.mark.parametrize("kept", ["checkpoint of today", "checkpoint that does not tell"])
def test_a_run_goes_on_with_the_text_that_its_checkpoint_was_trained_on(
    kept: str, whole: RunFolder, tmp_path: Path
) -> None:
    folder = cut_short(whole, tmp_path, SETTING, HALF)
    for checkpoint in listed(folder.checkpoints):
        assert checkpoint.manifest is not None
        if "not" in kept:
            state = {k: v for k, v in checkpoint.manifest.meta.state.items() if k != "data"}
            forgotten = replace(
                checkpoint.manifest, meta=replace(checkpoint.manifest.meta, state=state)
            )
            Path(str(checkpoint.path), "manifest.json").write_bytes(render(forgotten))
    write_text(tmp_path / "text.txt", seed=1)
    if "not" in kept:
        start(folder)
        assert loss_bits(folder)[HALF] != loss_bits(whole)[HALF]
        return
    with pytest.raises(RunFailed) as error:
        start(folder)
    assert "step-00000006 was trained on different text: text.txt" in str(error.value)
    assert "job.toml [data]" in str(error.value) and "fix: restore the run's data" in str(
        error.value
    )
    assert steps_done(folder) == HALF


# ---- asked to stop --------------------------------------------------------------------------


def test_a_run_that_is_asked_to_stop_saves_and_goes_on_bit_by_bit(
    whole: RunFolder, tmp_path: Path
) -> None:
    setting = replace(SETTING, every=0)
    folder = made(tmp_path, setting)

    def ask() -> None:
        wait_until(lambda: steps_done(folder) >= 3)
        folder.stop_request.touch()

    with meanwhile(ask):
        start(folder)
    (stopped,) = saved_steps(folder)
    assert stopped < STEPS and stopped == steps_done(folder)
    start(folder)
    assert saved_steps(folder)[-1] == STEPS
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)


def test_every_checkpoint_holds_the_loss_scale_of_its_own_step(tmp_path: Path) -> None:
    """The next step's norm may be known, and its scale settled, before a step is saved."""
    setting = Setting(
        pipeline=2, data=2, dtype="fp16", steps=10, every=1, keep=10, loss_scale=2.0**40
    )
    folder = made(tmp_path, setting)
    start(folder)
    scales = {
        checkpoint.step: checkpoint.manifest.meta.state["loss_scale"]
        for checkpoint in listed(folder.checkpoints)
        if checkpoint.manifest is not None
    }
    assert scales == {step: 2.0 ** (40 - step) for step in range(1, 11)}
