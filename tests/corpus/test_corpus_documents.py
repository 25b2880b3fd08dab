"""Real files of every format, whole and damaged."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from corpus_made import save_to_disk, write_lines, write_stream
from hypothesis import given
from hypothesis import strategies as st

from ratrain.corpus import documents
from ratrain.corpus.documents import pieces_of
from ratrain.corpus.sources import source_of, sources_of
from ratrain.errors import SpecError
from ratrain.readers import json_lines

TEXTS = ["first\r\nline", "über 数 🦀", "\n", "last"]


def read(path: Path, text_key: str = "text") -> list[str]:
    """The documents of a file, their pieces joined."""
    pieces, text = [], ""
    for piece in pieces_of(source_of(path), text_key):
        assert piece.text
        text += piece.text
        if piece.ends:
            pieces.append(text)
            text = ""
    assert not text, "the last document has no end"
    return pieces


# ---- every format -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt", "a.md", "A.RST", "a.py", "a.txt.gz"])
def test_a_text_file_is_one_document_as_it_stands(tmp_path: Path, name: str) -> None:
    content = "one\r\ntwo\n\nüber 🦀\n".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read(path) == [content.decode()]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz"])
def test_a_json_line_is_one_document(tmp_path: Path, name: str) -> None:
    lines = [json.dumps({"n": 1, "text": text}) for text in TEXTS]
    content = ("\n\n".join(lines) + "\n").encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read(path) == TEXTS


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_a_parquet_row_is_one_document(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(TEXTS * 300, kind)
    parquet.write_table(
        pa.table({"n": [0] * len(column), "body": column}),
        tmp_path / "a.parquet",
        row_group_size=500,
    )
    assert read(tmp_path / "a.parquet", "body") == TEXTS * 300


def test_a_parquet_column_of_repeated_texts_is_read(tmp_path: Path) -> None:
    column = pa.array(TEXTS * 3).dictionary_encode()
    parquet.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == TEXTS * 3


def test_an_arrow_stream_and_an_arrow_file_are_read_alike(tmp_path: Path) -> None:
    table = pa.table({"text": TEXTS * 200})
    write_stream(tmp_path / "stream.arrow", table)
    path = str(tmp_path / "file.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    assert read(tmp_path / "stream.arrow") == read(tmp_path / "file.arrow") == TEXTS * 200


def test_a_saved_dataset_gives_its_files_in_its_own_order(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "saved", [["b", "a"], ["c"]])
    sources = sources_of(("saved",), tmp_path)
    assert [text for s in sources for text in read(s.path)] == ["b", "a", "c"]


@pytest.mark.parametrize(("name", "header"), [("a.txt", b""), ("a.jsonl", b'{"text": "')])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str, header: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + header + b"x" + (b'"}' if header else b""))
    assert read(path) == ["x"]


def test_an_empty_document_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    write_lines(tmp_path / "a.jsonl", ["", "x", ""])
    assert read(tmp_path / "a.txt") == []
    assert read(tmp_path / "a.jsonl") == ["x"]


@given(st.text(st.sampled_from("ab\nü🦀"), max_size=60), st.integers(1, 9), st.integers(1, 9))
def test_a_long_document_comes_in_short_pieces_that_make_it_up(
    tmp_path_factory: pytest.TempPathFactory, text: str, piece_chars: int, read_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("long")
    (folder / "a.txt").write_bytes(text.encode())
    write_lines(folder / "a.jsonl", [text])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE_CHARS", piece_chars)
        patch.setattr(documents, "READ_BYTES", read_bytes)
        first, other = (
            [piece.text for piece in pieces_of(source_of(folder / name), "text")]
            for name in ("a.txt", "a.jsonl")
        )
        assert read(folder / "a.txt") == read(folder / "a.jsonl") == ([text] if text else [])
    assert first == other
    assert all(len(piece) <= piece_chars for piece in first)


# ---- which files ------------------------------------------------------------------------


def test_patterns_give_files_sorted_and_none_twice(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/er/c.txt", ".hidden.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    sources = sources_of(("b.txt", "**/*.txt", str(tmp_path / "a*.txt")), tmp_path)
    names = [str(source.path.relative_to(tmp_path)) for source in sources]
    assert names == ["b.txt", "a.txt", "deep/er/c.txt"]


def test_a_name_that_exists_is_not_taken_for_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("x")
    (tmp_path / "a1.txt").write_text("y")
    assert [s.path.name for s in sources_of(("a[1].txt",), tmp_path)] == ["a[1].txt"]


def make_pipe(path: Path) -> None:
    os.mkfifo(path / "pipe.txt")


def make_folder(path: Path) -> None:
    (path / "folder").mkdir()


def make_loop(path: Path) -> None:
    (path / "loop.txt").symlink_to("loop.txt")


def make_splits(path: Path) -> None:
    save_to_disk(path / "both" / "train", [["x"]])
    (path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')


def make_selection(path: Path) -> None:
    save_to_disk(path / "chosen", [["x"]], _indices_data_files=[{"filename": "i.arrow"}])


def make_listless(path: Path) -> None:
    (path / "listless").mkdir()
    (path / "listless" / "state.json").write_text("{}")


def make_half(path: Path) -> None:
    save_to_disk(path / "half", [["x"], ["y"]])
    (path / "half" / "data-00001-of-00002.arrow").unlink()


def make_binary(path: Path) -> None:
    (path / "a.bin").write_bytes(b"x")


@pytest.mark.parametrize(
    ("make", "pattern", "message"),
    [
        (make_pipe, "pipe.txt", "not a regular file"),
        (make_folder, "folder", "no state.json"),
        (make_loop, "loop.txt", "no such file"),
        (make_splits, "both", 'both/train"'),
        (make_selection, "chosen", "flatten_indices"),
        (make_listless, "listless", "_data_files"),
        (make_half, "half", "data-00001-of-00002.arrow: no such file"),
        (make_binary, "a.bin", "no reader for the suffix '.bin'"),
        (make_binary, "*.txt", "no file matches"),
        (make_binary, "a.txt", "no such file"),
        (make_binary, "x" * 300 + ".txt", "File name too long"),
    ],
)
def test_what_cannot_be_data_is_one_message(
    tmp_path: Path, make: Callable[[Path], None], pattern: str, message: str
) -> None:
    make(tmp_path)
    with pytest.raises(SpecError) as caught:
        sources_of((pattern,), tmp_path)
    assert message in str(caught.value)


# ---- what is wrong inside a file --------------------------------------------------------

GOOD = b'{"text": "x"}\n'


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (GOOD + b"\n{bad\n", 3, "not valid JSON"),
        (GOOD + b'["text"]\n', 2, "not a JSON object"),
        (GOOD + b'{"texts": "x"}\n', 2, 'set text_key = "texts"'),
        (b'{"source": "x", "content": "y"}\n', 1, 'set text_key = "content"'),
        (b"{}\n", 1, "its keys: nothing"),
        (GOOD + b'{"text": null}', 2, "'text' is null, not text"),
        (GOOD + b'{"text": 3}', 2, "'text' is int, not text"),
        (GOOD + b'{"text": "\xff"}', 2, "not UTF-8: byte 0xff"),
        (GOOD + b'{"text": "\\ud83d"}', 2, "surrogate"),
        (b"[" * 100_000, 1, "nested more than 64 deep"),
        (b'{"text": ' + b"9" * 5000 + b"}", 1, "5,000 digits"),
        (b"\x00\x01", 1, "NUL"),
    ],
)
def test_a_bad_json_line_is_named(tmp_path: Path, content: bytes, line: int, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        read(path)
    assert caught.value.place.startswith(f"{path}:{line}")
    assert message in str(caught.value)


def test_a_line_without_end_is_not_taken_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "LINE_BYTES", 100)
    monkeypatch.setattr(json_lines, "LINE_BYTES", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD + b'{"text": "' + b"x" * 1000)
    with pytest.raises(SpecError, match=r"a\.jsonl:2: longer than 100 bytes"):
        read(path)


@pytest.mark.parametrize("before", [0, 3, 70_000])
@pytest.mark.parametrize("bad", [b"\xff", b"\xe2\x82"])
def test_the_line_that_is_not_utf_8_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, bad: bytes
) -> None:
    monkeypatch.setattr(documents, "READ_BYTES", 1000)
    path = tmp_path / "a.txt"
    path.write_bytes("über\n".encode() * before + b"so " + bad)
    with pytest.raises(SpecError) as caught:
        read(path)
    assert caught.value.place == f"{path}:{before + 1}"


@pytest.mark.parametrize("kept", [0.2, 0.9])
def test_a_cut_gzip_is_named(tmp_path: Path, kept: float) -> None:
    content = gzip.compress(os.urandom(4000).hex().encode())
    path = tmp_path / "a.txt.gz"
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(SpecError, match=r"a\.txt\.gz: cannot be read"):
        read(path)


def test_a_gzip_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(GOOD)
    with pytest.raises(SpecError, match=r"a\.jsonl\.gz: cannot be read"):
        read(tmp_path / "a.jsonl.gz")


def a_table(path: Path, table: pa.Table) -> None:
    parquet.write_table(table, path) if path.suffix == ".parquet" else write_stream(path, table)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"texts": ["x"]}, 'set text_key = "texts"'),
        ({"text": [1]}, "'text' is int64, not text"),
        ({"text": [["x"]]}, "not text"),
        ({"text": ["x", "y", None]}, "row 3: 'text' is null"),
    ],
)
def test_a_table_without_texts_is_named(
    tmp_path: Path, name: str, columns: dict[str, list[Any]], message: str
) -> None:
    a_table(tmp_path / name, pa.table(columns))
    with pytest.raises(SpecError) as caught:
        read(tmp_path / name)
    assert message in str(caught.value)
    assert name in caught.value.place


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_row_that_is_not_utf_8_is_named(tmp_path: Path, name: str) -> None:
    raw = pa.array([b"x"] * 300 + [b"\xff"])
    column = pa.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2])
    a_table(tmp_path / name, pa.table({"text": column}))
    with pytest.raises(SpecError, match=r"row 301: 'text' is not UTF-8"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.6])
def test_a_cut_table_is_named(tmp_path: Path, name: str, kept: float) -> None:
    path = tmp_path / name
    a_table(path, pa.table({"text": [os.urandom(30).hex() for _ in range(500)]}))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(SpecError, match=f"{name}: not a readable"):
        read(path)


@given(position=st.integers(0, 10**6), value=st.integers(0, 255))
def test_any_altered_byte_of_a_table_gives_texts_or_one_message(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    folder = tmp_path_factory.mktemp("altered")
    for name in ("a.parquet", "a.arrow"):
        a_table(folder / name, pa.table({"text": ["some text"] * 20}))
        content = bytearray((folder / name).read_bytes())
        content[position % len(content)] = value
        (folder / name).write_bytes(content)
        try:
            read(folder / name)
        except SpecError as error:
            assert name in error.place
