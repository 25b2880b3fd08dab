"""Checkpoints in an object store: complete or absent, whatever request is the last one."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from checkpoint_made import CONFIG, MODEL, contents, evenly, holds, same_bits
from s3_server import BUCKET, Way

from ratrain.checkpoint.folder import begin, rank_path, url_of
from ratrain.checkpoint.listing import latest, listed, unfinished
from ratrain.checkpoint.manifest import Manifest, Meta
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.checkpoint.shard_writer import ShardWriter
from ratrain.checkpoint.upload import Ending, Upload
from ratrain.errors import CheckpointError, StoreError
from ratrain.objects.client import Stores
from ratrain.objects.owner import NAME as OWNER
from ratrain.objects.remote import Remote

UNITS = {"e": 64, "0": 100}


def run_at_a_url(folder: Path) -> Path:
    """A run whose checkpoints are in the store, where it is ours."""
    folder.mkdir()
    (folder / "checkpoints").mkdir()
    (folder / "url").write_text(f"s3://{BUCKET}/{uuid4().hex}/run\n")
    (folder / "run.json").write_text("{}")
    url = url_of(folder)
    assert url is not None
    with Stores() as stores:
        assert stores.create(url / OWNER, '{"token": "ours"}')
    return folder


def save(run: Path, step: int, patience_s: float = 20.0, units: dict[str, int] = UNITS) -> None:
    """Two ranks' files, sent as a run sends them."""
    partial, once = begin(run, step), uuid4().hex[:8]
    records = []
    for rank, entries in enumerate(evenly(units, 2)):
        with ShardWriter(rank_path(partial, rank, once), entries) as writer:
            for entry in entries:
                whole = contents(step, entry.unit, entry.kind, entry.size)
                writer.write(entry.name, whole[entry.begin : entry.end])
            records.append(writer.finish())
    manifest = Manifest(Meta(step, MODEL, CONFIG, units, {"tokens": 8}), 1.0, tuple(records))
    url, files = url_of(run), [rank_path(partial, rank, once) for rank in range(2)]
    assert url is not None
    Upload(run, url, files, step, Ending(manifest, 2, {}, "ours"), patience_s).wait()


def steps_that_hold(run: Path) -> list[int]:
    """The steps in the store, each proved whole and right."""
    for checkpoint in listed(run):
        assert checkpoint.manifest is not None, checkpoint.problem
        assert holds(open_checkpoint(checkpoint.path))
    return [checkpoint.step for checkpoint in listed(run)]


REQUESTS = 20
"""More than a save makes."""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("request_number", range(1, REQUESTS + 1))
@pytest.mark.parametrize("arrives", [False, True], ids=["before it arrives", "before its answer"])
@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step"])
def test_cut_off_at_any_request_of_a_save_the_last_whole_checkpoint_is_read(
    tmp_path: Path, way: Way, arrives: bool, again: bool, request_number: int
) -> None:
    run, cut = run_at_a_url(tmp_path / "run"), False
    for step in (1, 2):
        save(run, step)
    step = 2 if again else 3
    way.begin(request_number, arrives=arrives)
    try:
        save(run, step, patience_s=0.1)
    except StoreError:
        cut = True
    way.begin()
    steps = steps_that_hold(run)
    assert steps[-1] in (2, step)
    assert cut or steps == [step - 1, step]
    assert cut == (request_number <= 10) or 10 < request_number < REQUESTS
    save(run, step + 1)  # what a cut save has left is in nobody's way
    assert steps_that_hold(run)[-1] == step + 1
    assert unfinished(run) == ()


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("request_number", range(1, REQUESTS + 1))
@pytest.mark.parametrize("arrives", [False, True])
def test_a_save_goes_through_though_any_one_request_of_it_is_lost(
    tmp_path: Path, way: Way, arrives: bool, request_number: int
) -> None:
    run = run_at_a_url(tmp_path / "run")
    way.begin(request_number, arrives=arrives, once=True)
    save(run, 1)
    assert 8 < way.requests < REQUESTS
    assert steps_that_hold(run) == [1]


@pytest.mark.slow
def test_a_rank_that_reads_a_part_fetches_little_more_than_it(tmp_path: Path, way: Way) -> None:
    run, size = run_at_a_url(tmp_path / "run"), 20 << 20
    save(run, 1, units={"0": size})
    newest = latest(run)
    assert newest is not None
    checkpoint = open_checkpoint(newest.path, verify=False)
    way.begin()
    begin_at, count = size // 2 + (1 << 20), 1 << 10
    read = checkpoint.read_range("0", "moment1", begin_at, begin_at + count)
    assert same_bits(read, contents(1, "0", "moment1", size)[begin_at : begin_at + count])
    assert read.dtype == np.float32
    assert way.answered_bytes < 17 << 20  # a block under one checksum, of 240 MB


@pytest.mark.slow
@pytest.mark.usefixtures("way")
def test_bytes_altered_in_the_store_are_damage_with_the_step_before_as_the_fix(
    tmp_path: Path,
) -> None:
    run = run_at_a_url(tmp_path / "run")
    for step in (1, 2):
        save(run, step)
    newest = latest(run)
    assert newest is not None
    checkpoint = open_checkpoint(newest.path)
    file = checkpoint.manifest.files[0]
    with Stores() as stores:
        assert isinstance(checkpoint.path, Remote)
        stores.put(checkpoint.path / file.file, "x" * file.size_bytes)
    with pytest.raises(CheckpointError, match="altered") as raised:
        open_checkpoint(newest.path)
    assert raised.value.fix == "use step-00000001, the one before it is complete"


@pytest.mark.slow
@pytest.mark.usefixtures("way")
def test_a_launch_that_lost_its_url_changes_nothing_there(tmp_path: Path) -> None:
    run = run_at_a_url(tmp_path / "run")
    save(run, 1)
    url = url_of(run)
    assert url is not None
    with Stores() as stores:
        stores.put(url / OWNER, '{"token": "theirs", "owner": "another"}')
    with pytest.raises(Exception, match="taken over by another"):
        save(run, 2)
    assert steps_that_hold(run) == [1]
