"""What one layout writes, any other reads; and other programs read the files."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from checkpoint_made import (
    CONFIG,
    KINDS,
    MODEL,
    UNITS,
    Division,
    contents,
    evenly,
    holds,
    same_bits,
    save,
    write_ranks,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from ratrain.checkpoint.comparison import compare
from ratrain.checkpoint.entries import Entry, clipped
from ratrain.checkpoint.folder import begin, commit, rank_path
from ratrain.checkpoint.manifest import Meta, RankRecord, parse, render
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.checkpoint.shard_writer import ShardWriter
from ratrain.errors import CheckpointError

small_blocks = settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=[256, 16 << 20], ids=["blocks of 256 B", "one block"])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, so that ranges cross many of them; and the real size."""
    for module in ("entries", "digests", "reader"):
        monkeypatch.setattr(f"ratrain.checkpoint.{module}.BLOCK_BYTES", request.param)


@st.composite
def divisions(draw: st.DrawFn) -> Division:
    """Each buffer cut anywhere, each piece owned by any rank; some ranks may own nothing."""
    ranks = draw(st.integers(1, 5))
    owned: list[list[Entry]] = [[] for _ in range(ranks)]
    for unit, size in UNITS.items():
        for kind in KINDS:
            cuts = sorted({0, size, *draw(st.lists(st.integers(1, size - 1), max_size=4))})
            for first, last in pairwise(cuts):
                owner = draw(st.integers(0, ranks - 1))
                owned[owner].append(Entry(unit, kind, first, last - first, size))
    return [draw(st.permutations(entries)) for entries in owned]


@pytest.mark.slow
@pytest.mark.usefixtures("block_bytes")
@given(written=divisions(), read=divisions())
@small_blocks
def test_any_layout_reads_what_any_other_wrote(written: Division, read: Division) -> None:
    with TemporaryDirectory() as folder:
        checkpoint = open_checkpoint(save(Path(folder), 3, written))
        for entry in (entry for entries in read for entry in entries):
            values = checkpoint.read_range(entry.unit, entry.kind, entry.begin, entry.end)
            wanted = contents(3, entry.unit, entry.kind, entry.size)[entry.begin : entry.end]
            assert same_bits(values, wanted)


@pytest.mark.usefixtures("block_bytes")
@given(data=st.data())
@small_blocks
def test_a_tensor_may_be_written_in_pieces_of_any_size(data: st.DataObject) -> None:
    whole = contents(1, "0", "weights", 700)
    with TemporaryDirectory() as folder:
        partial = begin(Path(folder), 1)
        entry = Entry("0", "weights", 0, 700, 700)
        with ShardWriter(rank_path(partial, 0), [entry]) as writer:
            cuts = sorted({0, 700, *data.draw(st.lists(st.integers(1, 699), max_size=5))})
            for first, last in pairwise(cuts):
                writer.write(entry.name, whole[first:last])
            path = commit(partial, [writer.finish()], Meta(1, MODEL, CONFIG, {"0": 700}, {}))
        assert same_bits(open_checkpoint(path).read_range("0", "weights", 0, 700), whole)


def test_the_safetensors_library_reads_a_ranks_file(tmp_path: Path) -> None:
    path = save(tmp_path, 5, evenly(UNITS, 3))
    for rank, entries in enumerate(evenly(UNITS, 3)):
        with safe_open(path / f"rank-{rank:05d}.safetensors", framework="numpy") as file:
            assert set(file.keys()) == {entry.name for entry in entries}
            for entry in entries:
                whole = contents(5, entry.unit, entry.kind, entry.size)
                assert same_bits(file.get_tensor(entry.name), whole[entry.begin : entry.end])
                expected = f"begin={entry.begin} size={entry.size}"
                assert file.metadata()[entry.name] == expected


def test_half_precision_is_stored_as_it_is_and_read_as_float32(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 0.0, 3.140625, float("inf")], np.float32)
    partial = begin(tmp_path, 1)
    bf16 = Entry("a", "weights", 0, 5, 5, "BF16")
    f16 = Entry("b", "weights", 0, 5, 5, "F16")
    with ShardWriter(rank_path(partial, 0), [bf16, f16]) as writer:
        writer.write(f16.name, values.astype(np.float16))
        writer.write(bf16.name, (values.view(np.uint32) >> 16).astype(np.uint16))
        record = writer.finish()
    path = commit(partial, [record], Meta(1, MODEL, CONFIG, {"a": 5, "b": 5}, {}))
    checkpoint = open_checkpoint(path)
    assert same_bits(checkpoint.read_range("a", "weights", 0, 5), values)
    f16_values = values.astype(np.float16).astype(np.float32)
    assert same_bits(checkpoint.read_range("b", "weights", 1, 4), f16_values[1:4])


def test_padding_is_left_out_so_that_data_degrees_with_other_padding_agree(tmp_path: Path) -> None:
    size = UNITS["0"]
    ends = [384, 768, 1152]  # three owners of 384 elements each: 152 of padding
    entries = [clipped("0", "weights", end - 384, end, size) for end in ends]
    assert [entry.elements for entry in entries if entry] == [384, 384, 232]
    assert clipped("0", "weights", 1152, 1536, size) is None
    partial = begin(tmp_path, 1)
    records = write_ranks(partial, 1, [[entry] for entry in entries if entry])
    path = commit(partial, records, Meta(1, MODEL, CONFIG, {"0": size}, {}))
    values = open_checkpoint(path).read_range("0", "weights", 500, size)
    assert same_bits(values, contents(1, "0", "weights", size)[500:])


def test_a_record_survives_the_way_to_the_rank_that_commits(tmp_path: Path) -> None:
    for record in write_ranks(begin(tmp_path, 1), 1, evenly(UNITS, 2)):
        assert RankRecord.of_json(json.loads(json.dumps(record.as_json()))) == record


def test_a_manifest_reads_back_as_it_was(tmp_path: Path) -> None:
    manifest = open_checkpoint(save(tmp_path, 7)).manifest
    assert parse(render(manifest)) == manifest
    assert manifest.meta.state == {"tokens": 56}


@pytest.mark.parametrize(
    ("unit", "kind", "first", "last", "message"),
    [
        ("9", "weights", 0, 1, "units e, 0, 1, h"),
        ("0", "gradient", 0, 1, "kinds moment1, moment2, weights"),
        ("0", "weights", 0, 1001, r"\[1000, 1001\); it holds \[0, 1000\)"),
        ("0", "weights", -1, 10, r"it holds \[0, 1000\)"),
    ],
)
def test_a_range_that_is_not_there_is_named(
    tmp_path: Path, unit: str, kind: str, first: int, last: int, message: str
) -> None:
    checkpoint = open_checkpoint(save(tmp_path, 1))
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read_range(unit, kind, first, last)


def test_another_models_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save(tmp_path, 1))
    checkpoint.expect(MODEL, CONFIG, UNITS)
    with pytest.raises(CheckpointError, match="is of model 'tiny', not 'huge'"):
        checkpoint.expect("huge", CONFIG, UNITS)
    with pytest.raises(CheckpointError, match="unit '1' has 1000 elements here, none in"):
        checkpoint.expect(MODEL, CONFIG, {unit: UNITS[unit] for unit in "e0h"})
    with pytest.raises(CheckpointError, match="different configuration of 'tiny'"):
        checkpoint.expect(MODEL, "0ther", UNITS)


def test_comparison_finds_the_one_bit_that_differs(tmp_path: Path) -> None:
    first = open_checkpoint(save(tmp_path / "a", 1, evenly(UNITS, 2)))
    same = open_checkpoint(save(tmp_path / "b", 1, evenly(UNITS, 3)))
    assert all(each.identical for each in compare(first, same))
    partial = begin(tmp_path / "c", 1)
    records: list[RankRecord] = []
    for rank, entries in enumerate(evenly(UNITS, 2)):
        with ShardWriter(rank_path(partial, rank), entries) as writer:
            for entry in entries:
                whole = contents(1, entry.unit, entry.kind, entry.size)
                if (entry.unit, entry.kind) == ("1", "moment2"):
                    whole.view(np.uint32)[17] ^= 1
                writer.write(entry.name, whole[entry.begin : entry.end])
            records.append(writer.finish())
    path = commit(partial, records, Meta(1, MODEL, CONFIG, UNITS, {}))
    unlike = [each for each in compare(first, open_checkpoint(path)) if not each.identical]
    assert [(each.unit, each.kind, each.differing) for each in unlike] == [("1", "moment2", 1)]
    assert unlike[0].largest > 0
    assert holds(first)


def test_checkpoints_of_two_models_are_not_compared(tmp_path: Path) -> None:
    first = open_checkpoint(save(tmp_path / "a", 1))
    other = open_checkpoint(save(tmp_path / "b", 1, units={"e": 10}))
    with pytest.raises(CheckpointError, match="cannot be compared"):
        compare(first, other)
