"""A truncated, altered or incomplete checkpoint is detected and named, and never read as whole."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from checkpoint_made import CONFIG, KINDS, MODEL, UNITS, evenly, holds, save, write_ranks
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.checkpoint.entries import Entry
from ratrain.checkpoint.folder import begin, commit, rank_path
from ratrain.checkpoint.listing import latest, listed
from ratrain.checkpoint.manifest import NAME, Meta
from ratrain.checkpoint.reader import Checkpoint, open_checkpoint
from ratrain.checkpoint.shard_writer import ShardWriter
from ratrain.errors import CheckpointError

FILES = ("rank-00000.safetensors", "rank-00001.safetensors", NAME)
FIX = "use step-00000080, the one before it is complete"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with steps 80 and 100, copied by every test that harms it."""
    run = tmp_path_factory.mktemp("kept")
    for step in (80, 100):
        save(run, step)
    return run


def read_all(path: Path, verify: bool) -> Checkpoint:
    """Opens and reads every element; the reader must object to any damage on the way."""
    checkpoint = open_checkpoint(path, verify=verify)
    for unit, size in checkpoint.manifest.meta.units.items():
        for kind in checkpoint.kinds:
            checkpoint.read_range(unit, kind, 0, size)
    return checkpoint


def refused(path: Path, name: str, verify: bool) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_all(path, verify)
    assert name in caught.value.what
    assert str(path) == caught.value.place
    assert caught.value.fix == FIX


@pytest.mark.slow
@given(
    name=st.sampled_from(FILES), where=st.floats(0, 1), bit=st.integers(0, 7), verify=st.booleans()
)
@settings(deadline=None, max_examples=300)
def test_every_flipped_bit_is_detected_and_its_file_named(
    kept: Path, name: str, where: float, bit: int, verify: bool
) -> None:
    path = kept / "checkpoints" / "step-00000100"
    whole = (path / name).read_bytes()
    harmed = bytearray(whole)
    harmed[min(int(where * len(whole)), len(whole) - 1)] ^= 1 << bit
    (path / name).write_bytes(harmed)
    try:
        refused(path, name, verify)
    finally:
        (path / name).write_bytes(whole)
    read_all(path, verify)


@given(name=st.sampled_from(FILES), where=st.floats(0, 0.9999), verify=st.booleans())
@settings(deadline=None, max_examples=80)
def test_every_truncation_is_detected_and_its_file_named(
    kept: Path, name: str, where: float, verify: bool
) -> None:
    path = kept / "checkpoints" / "step-00000100"
    whole = (path / name).read_bytes()
    (path / name).write_bytes(whole[: int(where * len(whole))])
    try:
        refused(path, name, verify)
    finally:
        (path / name).write_bytes(whole)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_or_too_long_is_named(kept: Path, tmp_path: Path, name: str) -> None:
    path = shutil.copytree(kept, tmp_path / "run") / "checkpoints" / "step-00000100"
    with (path / name).open("ab") as file:
        file.write(b"\n")
    refused(path, name, verify=False)
    (path / name).unlink()
    refused(path, name, verify=False)


def test_a_file_cut_after_opening_is_detected_when_it_is_read(kept: Path, tmp_path: Path) -> None:
    path = shutil.copytree(kept, tmp_path / "run") / "checkpoints" / "step-00000100"
    checkpoint = open_checkpoint(path)
    (path / FILES[0]).write_bytes((path / FILES[0]).read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"rank-00000\.safetensors is altered"):
        checkpoint.read_range("h", "moment2", 0, UNITS["h"])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 99}, "version 99; this ratrain reads"),
        ({"created_s": -1795445711.9}, "an invalid time, -1795445711.9"),
        ({"created_s": True}, "an invalid time, true"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused_though_its_checksum_is_right(
    kept: Path, tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    path = shutil.copytree(kept, tmp_path / "run") / "checkpoints" / "step-00000100"
    body = json.loads((path / NAME).read_text()) | changes | {"sha256": "0" * 64}
    text = json.dumps(body, indent=1) + "\n"
    (path / NAME).write_text(text.replace("0" * 64, sha256(text.encode()).hexdigest()))
    with pytest.raises(CheckpointError, match=says):
        open_checkpoint(path)


def test_a_checkpoint_under_another_steps_name_is_refused(kept: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(kept, tmp_path / "run") / "checkpoints"
    (folder / "step-00000100").rename(folder / "step-00000200")
    with pytest.raises(CheckpointError, match="is of step 100"):
        open_checkpoint(folder / "step-00000200")


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(CheckpointError, match=r"manifest.json is missing"):
            open_checkpoint(path)


def test_latest_passes_over_damage_only_when_asked_and_says_so(kept: Path, tmp_path: Path) -> None:
    run = shutil.copytree(kept, tmp_path / "run")
    folder = run / "checkpoints"
    newest = latest(run)
    assert newest is not None and newest.path == folder / "step-00000100" and not newest.skipped
    size_bytes = (folder / "step-00000100" / FILES[1]).stat().st_size
    (folder / "step-00000100" / FILES[1]).write_bytes(b"")
    with pytest.raises(CheckpointError, match=FIX):
        latest(run)
    before_it = latest(folder, skip_damaged=True)
    assert before_it is not None and before_it.path == folder / "step-00000080"
    assert [skipped.problem for skipped in before_it.skipped] == [
        f"{FILES[1]} has 0 bytes instead of {size_bytes}"
    ]
    (folder / "step-00000080" / NAME).unlink()
    with pytest.raises(CheckpointError, match="all 2 are damaged: step-00000100: "):
        latest(run, skip_damaged=True)


def test_a_run_that_saved_nothing_has_no_latest(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    begin(tmp_path, 1)
    assert latest(tmp_path) is None


def test_saving_a_step_again_replaces_the_damaged_one(kept: Path, tmp_path: Path) -> None:
    run = shutil.copytree(kept, tmp_path / "run")
    harmed = run / "checkpoints" / "step-00000100" / FILES[0]
    harmed.write_bytes(harmed.read_bytes()[:-1])
    assert holds(open_checkpoint(save(run, 100, evenly(UNITS, 3))))
    assert [checkpoint.step for checkpoint in listed(run)] == [80, 100]


def test_a_commit_without_every_element_once_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    division = [list(entries) for entries in evenly(UNITS, 2)]
    for harmed, message in (
        ([division[0]], r"0/moment1 \[500, 1000\) is missing"),
        ([*division, [Entry("0", "weights", 400, 200, 1000)]], r"0/weights \[400, 500\).*twice"),
        ([*division, [Entry("7", "weights", 0, 9, 9)]], "unit '7' is not one of the model's"),
        ([[entry for entry in each if entry.unit != "h"] for each in division], "h/moment1"),
        ([[replace(e, size=e.size + 1) for e in each] for each in division],
         "written for a unit of 1001 elements, not 1000"),
        ([], "it holds no tensor"),
    ):  # fmt: skip
        partial = begin(tmp_path, 1)
        records = write_ranks(partial, 1, harmed)
        with pytest.raises(CheckpointError, match=message):
            commit(partial, records, Meta(1, MODEL, CONFIG, UNITS, {}))
        assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_state_that_is_not_json_is_refused(tmp_path: Path) -> None:
    for state in ({"scale": float("nan")}, {"generator": np.zeros(3)}):
        partial = begin(tmp_path, 1)
        records = write_ranks(partial, 1, evenly(UNITS, 1))
        with pytest.raises(CheckpointError, match="cannot be written as JSON"):
            commit(partial, records, Meta(1, MODEL, CONFIG, UNITS, state))


def test_a_writer_refuses_what_would_not_be_what_was_announced(tmp_path: Path) -> None:
    entry = Entry("0", "weights", 0, 10, 10)
    good = np.zeros(10, np.float32)
    with ShardWriter(rank_path(begin(tmp_path, 1), 0), [entry]) as writer:
        for buffer, message in (
            (np.zeros(11, np.float32), "44 bytes where 40 remain"),
            (np.zeros(10, np.float64), "format 'd'"),
            (np.zeros(20, np.float32)[::2], "with holes"),
        ):
            with pytest.raises(CheckpointError, match=message):
                writer.write(entry.name, buffer)
        with pytest.raises(CheckpointError, match="no tensor 'x'"):
            writer.write("x", good)
        writer.write(entry.name, good[:4])
        with pytest.raises(CheckpointError, match="has 16 bytes of 40"):
            writer.finish()


def test_two_ranks_never_write_to_one_file(tmp_path: Path) -> None:
    path = rank_path(begin(tmp_path, 1), 0)
    entry = Entry("0", "weights", 0, 10, 10)
    with (
        ShardWriter(path, [entry]),
        pytest.raises(CheckpointError, match="File exists"),
    ):
        ShardWriter(path, [entry])


def test_bad_ranges_are_refused_where_they_are_made() -> None:
    for begin_, elements, size in ((-1, 2, 9), (0, 0, 9), (5, 5, 9)):
        with pytest.raises(CheckpointError, match="store at least one element"):
            Entry("0", KINDS[0], begin_, elements, size)
    with pytest.raises(CheckpointError, match="unknown type 'I64'"):
        Entry("0", KINDS[0], 0, 1, 1, "I64")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(CheckpointError, match="making a checkpoint folder"):
        begin(tmp_path, 1)
