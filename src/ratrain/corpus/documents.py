"""The documents of a file, piece by piece, so that no file has to fit in memory.

A document is a whole text file, the text of one JSON line, or one row of a Parquet or Arrow
table. Text is used unchanged: no line end is changed, only a byte-order mark is dropped. An
empty document is left out. Whatever cannot be read is one SpecError with the file and its line.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

from ratrain.corpus.columns import texts_of_table
from ratrain.corpus.faults import missing_key, not_text, not_utf8
from ratrain.corpus.sources import Source
from ratrain.errors import SpecError
from ratrain.readers.json_lines import check_line, parse_line
from ratrain.readers.limits import LINE_BYTES

PIECE_CHARS = 1 << 22
"""A longer document reaches the tokenizer in pieces of at most this many characters."""
READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Piece:
    """Some or all of a document's text; never empty."""

    text: str
    ends: bool  # the document's last piece
    done_bytes: int  # how far into its source file, for progress
    answers: tuple[tuple[int, int], ...] = ()  # of a conversation: characters that count


def pieces_of(source: Source, text_key: str) -> Iterator[Piece]:
    """The pieces of every document of a file, in order."""
    if source.kind == "text":
        return _text_pieces(source)
    if source.kind == "json-lines":
        return _cut_all(_json_texts(source, text_key))
    return _cut_all(texts_of_table(source, text_key))


def next_cut(text: str) -> int:
    """Where a text longer than a piece is cut: behind its last line end, or where it must be."""
    return text.rfind("\n", 0, PIECE_CHARS) + 1 or PIECE_CHARS


def _cut_all(texts: Iterable[tuple[str, int]]) -> Iterator[Piece]:
    for text, done_bytes in texts:
        rest = text
        while len(rest) > PIECE_CHARS:
            cut = next_cut(rest)
            yield Piece(rest[:cut], False, done_bytes)
            rest = rest[cut:]
        if rest:
            yield Piece(rest, True, done_bytes)


@contextmanager
def _opened(source: Source) -> Generator[tuple[IO[bytes], IO[bytes]]]:
    """The file's content and the file itself, whose position shows progress."""
    try:
        with source.path.open("rb") as raw:
            if source.compressed:
                with gzip.open(raw, "rb") as content:
                    yield cast("IO[bytes]", content), raw
            else:
                yield raw, raw
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(
            f"cannot be read: {reason}", place=str(source.path), fix="repair it or leave it out"
        ) from error


def _text_pieces(source: Source) -> Iterator[Piece]:
    """One document: the whole file."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    lines, text = 0, ""
    with _opened(source) as (content, raw):
        while True:
            data = content.read(READ_BYTES)
            try:
                addition = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                line = lines + error.object[: error.start].count(b"\n") + 1
                raise not_utf8(source.path, line, error) from error
            lines += addition.count("\n")
            text += addition
            if not data:
                break
            while len(text) > PIECE_CHARS:
                cut = next_cut(text)
                yield Piece(text[:cut], False, raw.tell())
                text = text[cut:]
        if text:
            yield Piece(text, True, raw.tell())


def _json_texts(source: Source, text_key: str) -> Iterator[tuple[str, int]]:
    """The text of each line and how far the file is read."""
    for fields, place, done_bytes in json_rows(source):
        yield _json_text(fields, place, text_key), done_bytes


def json_rows(source: Source) -> Iterator[tuple[dict[str, Any], str, int]]:
    """The keys of each line, its place, and how far the file is read; blank lines are none."""
    with _opened(source) as (content, raw):
        number = 0
        while line := content.readline(LINE_BYTES + 1):
            number += 1
            check_line(line, str(source.path), number)
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                fields, place = parse_line(line, str(source.path), number)
                yield fields, str(place), raw.tell()


def _json_text(fields: dict[str, Any], place: str, text_key: str) -> str:
    if text_key not in fields:
        raise missing_key(text_key, list(fields), place)
    text = fields[text_key]
    if not isinstance(text, str):
        raise not_text(text_key, text, place)
    return text
