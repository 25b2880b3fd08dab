"""Checkpoints of runs whose optimizer states are on disk: their files, and no copies of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from crew import Crew
from runs_made import Setting
from training import train

from ratrain.checkpoint.comparison import compare
from ratrain.checkpoint.reader import Checkpoint, open_checkpoint
from ratrain.storage import TierStore

pytestmark = [pytest.mark.slow]


def saved(crew: Crew, folder: Path, setting: Setting, step: int = 4) -> Checkpoint:
    """The checkpoint of a step, every byte verified."""
    train(crew, setting, folder, saves=True)
    return open_checkpoint(folder / "run" / "checkpoints" / f"step-{step:08d}")


def from_tier(checkpoint: Checkpoint) -> set[str]:
    """The kinds of state that lie in files of the tier."""
    return {
        stored.entry.kind
        for record in checkpoint.manifest.files
        if ".optimizer-" in record.file
        for stored in record.stored
    }


def elsewhere(checkpoint: Checkpoint) -> set[str]:
    """Those that ranks wrote."""
    return {
        stored.entry.kind
        for record in checkpoint.manifest.files
        if ".optimizer-" not in record.file
        for stored in record.stored
    }


@pytest.mark.parametrize("sharding", [0, 2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_states_on_disk_are_in_a_checkpoint_by_their_files_with_the_bits_of_a_run_without(
    crew: Crew, tmp_path: Path, dtype: str, sharding: int
) -> None:
    setting = Setting("ratrain", 2, 1, dtype=dtype, sharding=sharding, steps=4, every=2, keep=4)
    whole = saved(crew, tmp_path / "device", setting)
    away = saved(crew, tmp_path / "disk", replace(setting, optimizer_tier="disk"))
    assert all(row.identical for row in compare(whole, away))
    moments = {"moment1", "moment2"}
    # in fp32 the weights are their own master, and stay on the device
    assert from_tier(away) == (moments if dtype == "fp32" else {"weights", *moments})
    assert elsewhere(away) == ({"weights"} if dtype == "fp32" else set())
    assert from_tier(whole) == set()


def test_the_files_are_plain_tensor_files(crew: Crew, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    setting = Setting("ratrain", 1, 1, dtype="bf16", steps=4, every=2, optimizer_tier="disk")
    checkpoint = saved(crew, tmp_path, setting)
    for record in checkpoint.manifest.files:
        read = load_file(Path(str(checkpoint.path)) / record.file)
        for stored in record.stored:
            entry = stored.entry
            values = checkpoint.read_range(entry.unit, entry.kind, entry.begin, entry.end)
            assert np.array_equal(read[entry.name], values)


def test_an_optimizer_that_keeps_no_fp32_numbers_and_replicas_with_all_of_a_unit_write_as_before(
    crew: Crew, tmp_path: Path
) -> None:
    setting = Setting("ratrain", 1, 2, dtype="bf16", sharding=0, steps=4, every=2)
    setting = replace(setting, optimizer_tier="disk")
    replicas = saved(crew, tmp_path / "replicas", setting)
    assert from_tier(replicas) == set()
    eight_bits = replace(setting, data=1, optimizer="adamw-8bit")
    assert from_tier(saved(crew, tmp_path / "8", eight_bits)) == set()


def test_where_files_cannot_be_linked_they_are_written_as_before(
    crew: Crew, tmp_path: Path
) -> None:
    setting = Setting("ratrain", 1, 1, dtype="bf16", steps=4, every=2, optimizer_tier="disk")
    linked = saved(crew, tmp_path / "linked", setting)
    crew.ask(1, _without_links)
    try:
        written = saved(crew, tmp_path / "written", setting)
    finally:
        crew.ask(1, _with_links)
    assert from_tier(linked) and not from_tier(written)
    assert all(row.identical for row in compare(linked, written))


_CAN_GIVE = TierStore.can_give


def _without_links(_rank: int, _world_size: int) -> None:
    TierStore.can_give = lambda *_: False  # type: ignore[method-assign]


def _with_links(_rank: int, _world_size: int) -> None:
    TierStore.can_give = _CAN_GIVE  # type: ignore[method-assign]
