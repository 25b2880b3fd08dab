"""A checkpoint on several disks, each rank's file on its host's own; which checkpoints stay."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from checkpoint_made import CONFIG, MODEL, UNITS, evenly, holds, save, write_ranks

from ratrain.checkpoint.best import Best, read_best, write_best
from ratrain.checkpoint.folder import begin, publish, rank_name, seal
from ratrain.checkpoint.listing import listed, prune
from ratrain.checkpoint.manifest import Manifest, Meta, Spread
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.errors import CheckpointError, SavedElsewhere

HOSTS = ("birch", "oak")
FILES = [rank_name(rank) for rank in range(3)]
DISK_OF = {FILES[0]: 0, FILES[1]: 1, FILES[2]: 1}


def sealed(disks: list[Path], step: int) -> list[Path]:
    """The partial folders of a step, complete but for their names."""
    partials = [begin(disk, step) for disk in disks]
    records = write_ranks(partials[0], step, evenly(UNITS, 3))
    for file, number in DISK_OF.items():
        if number:
            (partials[0] / file).rename(partials[number] / file)
    meta = Meta(step, MODEL, CONFIG, UNITS, {})
    for here, partial in enumerate(partials):
        seal(partial, Manifest(meta, 1.0, tuple(records), Spread(HOSTS, DISK_OF, here)))
    return partials


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in HOSTS]


def test_each_disk_has_its_part_and_says_where_the_rest_lies(disks: list[Path]) -> None:
    birch, oak = (publish(partial) for partial in sealed(disks, 100))
    for path, here in ((birch, FILES[:1]), (oak, FILES[1:])):
        (checkpoint,) = listed(path.parent)
        assert checkpoint.manifest is not None, checkpoint.problem
        assert [file.file for file in checkpoint.manifest.local_files] == here
        assert [file.file for file in checkpoint.elsewhere] == [f for f in FILES if f not in here]
        open_checkpoint(path, verify=True)
    first, second = (open_checkpoint(path, verify=False).manifest for path in (birch, oak))
    assert first.identity == second.identity and first != second


def test_what_lies_on_another_disk_is_named_with_its_host_and_can_be_brought(
    disks: list[Path],
) -> None:
    birch, oak = (publish(partial) for partial in sealed(disks, 100))
    checkpoint = open_checkpoint(birch, verify=False)
    with pytest.raises(SavedElsewhere, match=r"rank-00001.safetensors was saved to .* host oak"):
        checkpoint.read_range("0", "weights", 0, UNITS["0"])
    for file in FILES[1:]:
        shutil.copyfile(oak / file, birch / file)
    assert holds(open_checkpoint(birch)) and not listed(birch.parent)[0].elsewhere
    (birch / FILES[2]).write_bytes(b"cut")
    assert listed(birch.parent)[0].manifest is None, "what was brought is looked at too"


def test_a_file_that_a_disk_should_have_is_missed(disks: list[Path]) -> None:
    _, oak = (publish(partial) for partial in sealed(disks, 100))
    (oak / FILES[2]).unlink()
    assert "rank-00002.safetensors cannot be read" in listed(oak.parent)[0].problem
    with pytest.raises(CheckpointError):
        open_checkpoint(oak, verify=False)


def test_a_save_that_ends_between_two_disks_leaves_the_one_before_it_on_both(
    disks: list[Path],
) -> None:
    for partial in sealed(disks, 80):
        publish(partial)
    first, _ = sealed(disks, 100)
    publish(first)
    steps = [[each.step for each in listed(disk)] for disk in disks]
    assert steps == [[80, 100], [80]]
    for partial in sealed(disks, 100):
        publish(partial)
    assert [[each.step for each in listed(disk)] for disk in disks] == [[80, 100], [80, 100]]


def test_what_is_newer_than_the_run_neither_counts_nor_goes(tmp_path: Path) -> None:
    """A run that passed over a damaged step 120 saves 90 and 100 before it comes there again."""
    for step in (80, 120, 90, 100):
        save(tmp_path, step)
    prune(tmp_path, 1, upto=100)
    assert [each.step for each in listed(tmp_path)] == [100, 120]
    prune(tmp_path, 1)
    assert [each.step for each in listed(tmp_path)] == [120]


def test_the_best_checkpoint_stays_beside_the_latest_ones(tmp_path: Path) -> None:
    save(tmp_path, 20)
    assert read_best(tmp_path) is None
    write_best(tmp_path, Best(20, 1.5))
    for step in (40, 60, 80):
        save(tmp_path, step)
        prune(tmp_path, 2, upto=step)
    assert [each.step for each in listed(tmp_path)] == [20, 60, 80]
    write_best(tmp_path, Best(80, 1.25))
    prune(tmp_path, 1)
    assert [each.step for each in listed(tmp_path)] == [80]
    assert read_best(tmp_path / "checkpoints") == Best(80, 1.25)


@pytest.mark.parametrize("content", ["", "{}", '{"step": "x"}', "[1]", "\x00"])
def test_a_damaged_note_of_the_best_checkpoint_is_as_none(content: str, tmp_path: Path) -> None:
    save(tmp_path, 20)
    (tmp_path / "checkpoints" / "best.json").write_text(content)
    assert read_best(tmp_path) is None
    write_best(tmp_path, Best(30, 1.0))
    assert read_best(tmp_path) is None, "what it names is not there"


def rewrite(manifest: Path, **changes: Any) -> None:
    """Puts other words into a manifest's spread, under a checksum that is right for them."""
    body = json.loads(manifest.read_text())
    body["spread"].update(changes)
    text = (json.dumps({**body, "sha256": "0" * 64}, indent=1) + "\n").encode()
    manifest.write_bytes(text[:-68] + sha256(text).hexdigest().encode() + text[-4:])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"disks": []}, "[] for disks"),
        ({"disks": ["birch", 7]}, "7 for 1, not a name"),
        ({"disks": ["birch"]}, "from 0 to 0"),
        ({"disk_of": []}, "[] for disk_of"),
        ({"disk_of": {FILES[0]: 0}}, f"null for {FILES[1]}"),
        ({"disk_of": {**DISK_OF, FILES[2]: 2}}, f"2 for {FILES[2]}"),
        ({"here": -1}, "-1 for here"),
        ({"here": True}, "true for here"),
    ],
)
def test_a_manifest_whose_disks_cannot_be_is_damaged_and_says_where(
    disks: list[Path], changes: dict[str, Any], says: str
) -> None:
    path, _ = (publish(partial) for partial in sealed(disks, 100))
    rewrite(path / "manifest.json")
    assert listed(path.parent)[0].manifest is not None, "nothing was changed"
    rewrite(path / "manifest.json", **changes)
    assert says in listed(path.parent)[0].problem


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "{" * 2000, '{"step": true, "validation_loss_bits": "0x1p0"}'),
        *('{"step": 4, "validation_loss_bits": 1}', '{"step": 4, "validation_loss_bits": "x"}'),
        '{"step": ' + "9" * 5000 + ', "validation_loss_bits": "0x1p0"}',
        '{"step": 4, "validation_loss_bits": "0x1p99999"}',
    ],
)
def test_a_damaged_word_of_the_best_checkpoint_is_as_none(tmp_path: Path, text: str) -> None:
    save(tmp_path, 4)
    write_best(tmp_path, Best(4, 1.0))
    assert read_best(tmp_path) == Best(4, 1.0)
    (written,) = tmp_path.rglob("best.json")
    written.write_text(text)
    assert read_best(tmp_path) is None
