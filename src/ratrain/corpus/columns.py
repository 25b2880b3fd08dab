"""The texts of one column of a Parquet file or of an Arrow stream, a few rows at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

from ratrain.corpus.faults import missing_key
from ratrain.corpus.sources import Source
from ratrain.errors import SpecError

ROWS = 256
"""Rows that become Python texts at once."""


def rows_of_table(source: Source) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Each row with all its columns, its place, and about how many of the file's bytes are read."""
    with _readable(source) as arrow:
        row = 0
        for batch, done_bytes in _whole_batches(arrow, source):
            batch.validate(full=True)
            for start in range(0, len(batch), ROWS):
                for fields in batch.slice(start, ROWS).to_pylist():
                    row += 1
                    yield _given(fields), f"{source.path} row {row}", done_bytes


def _given(value: Any) -> Any:
    """A row without keys that are null: columns have all keys of any row."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {key: _given(inner) for key, inner in table.items() if inner is not None}
    return list(map(_given, cast("list[Any]", value))) if isinstance(value, list) else value


def _whole_batches(arrow: Any, source: Source) -> Iterator[tuple[Any, int]]:
    if source.kind == "parquet":
        parquet: Any = import_module("pyarrow.parquet")
        with parquet.ParquetFile(source.path, memory_map=True) as file:
            total, row = max(1, file.metadata.num_rows), 0
            for batch in file.iter_batches(ROWS, use_threads=False):
                yield batch, source.size_bytes * row // total
                row += len(batch)
        return
    with arrow.memory_map(str(source.path)) as file:
        magic = file.read(6)
        file.seek(0)
        batches = _batches_of_file(arrow, file) if magic == b"ARROW1" else _stream(arrow, file)
        for batch in batches:
            yield batch, file.tell()


def texts_of_table(source: Source, text_key: str) -> Iterator[tuple[str, int]]:
    """The text of each row and about how many of the file's bytes are read."""
    with _readable(source) as arrow:
        if source.kind == "parquet":
            yield from _parquet_texts(arrow, source, text_key)
        else:
            yield from _arrow_texts(arrow, source, text_key)


@contextmanager
def _readable(source: Source) -> Generator[Any]:
    """The library; what it raises for a damaged file becomes one SpecError."""
    try:
        arrow = import_module("pyarrow")
    except ImportError as error:
        raise SpecError(
            f"a {source.kind} file needs the library `pyarrow`",
            place=str(source.path),
            fix='pip install "ratrain[train]"',
        ) from error
    try:
        yield arrow
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "damaged"
        raise SpecError(
            f"not a readable {source.kind} file: {reason}",
            place=str(source.path),
            fix="repair it or leave it out",
        ) from error


def _parquet_texts(arrow: Any, source: Source, text_key: str) -> Iterator[tuple[str, int]]:
    parquet: Any = import_module("pyarrow.parquet")
    with parquet.ParquetFile(source.path, memory_map=True) as file:
        _check_column(arrow, file.schema_arrow, text_key, source)
        total, row = max(1, file.metadata.num_rows), 0
        for batch in file.iter_batches(ROWS, columns=[text_key], use_threads=False):
            done_bytes = source.size_bytes * row // total
            column = batch.column(0)
            _check_texts(arrow, column, text_key, source, row)
            for text in _texts(column, text_key, source, row):
                yield text, done_bytes
            row += len(batch)


def _arrow_texts(arrow: Any, source: Source, text_key: str) -> Iterator[tuple[str, int]]:
    with arrow.memory_map(str(source.path)) as file:
        magic = file.read(6)
        file.seek(0)
        batches = _batches_of_file(arrow, file) if magic == b"ARROW1" else _stream(arrow, file)
        row = 0
        for batch in batches:
            _check_column(arrow, batch.schema, text_key, source)
            column = batch.column(text_key)
            _check_texts(arrow, column, text_key, source, row)
            for start in range(0, len(column), ROWS):
                for text in _texts(column.slice(start, ROWS), text_key, source, row + start):
                    yield text, file.tell()
            row += len(column)


def _batches_of_file(arrow: Any, file: Any) -> Iterator[Any]:
    reader = arrow.ipc.open_file(file)
    return (reader.get_batch(number) for number in range(reader.num_record_batches))


def _stream(arrow: Any, file: Any) -> Iterator[Any]:
    return iter(arrow.ipc.open_stream(file))


def _check_column(arrow: Any, schema: Any, text_key: str, source: Source) -> None:
    if schema.names.count(text_key) != 1:
        raise missing_key(text_key, list(schema.names), str(source.path))
    kind = schema.field(text_key).type
    inner = kind.value_type if arrow.types.is_dictionary(kind) else kind
    types = arrow.types
    if not (types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)):
        raise SpecError(
            f"the column {text_key!r} is {kind}, not text",
            place=str(source.path),
            fix="set text_key to a column of strings",
        )


def _check_texts(arrow: Any, column: Any, text_key: str, source: Source, first_row: int) -> None:
    """An error for offsets that point elsewhere, which would end the process, and bad UTF-8."""
    try:
        column.validate(full=True)
    except arrow.ArrowInvalid as error:
        if "UTF8" not in str(error):  # it looks for that last, so that reading is safe by then
            raise
        raise SpecError(
            f"{text_key!r} is not UTF-8",
            place=f"{source.path} row {first_row + _first_undecodable(column) + 1}",
            fix="convert it or leave it out",
        ) from error


def _texts(column: Any, text_key: str, source: Source, first_row: int) -> list[str]:
    """The texts of some rows; a null is named with its row."""
    texts: list[str | None] = column.to_pylist()
    checked: list[str] = []
    for offset, text in enumerate(texts):
        if text is None:
            raise SpecError(
                f"{text_key!r} is null, not text",
                place=f"{source.path} row {first_row + offset + 1}",
                fix="leave this row out",
            )
        checked.append(text)
    return checked


def _first_undecodable(column: Any) -> int:
    for offset, scalar in enumerate(column):
        try:
            scalar.as_py()
        except UnicodeDecodeError:
            return offset
    return 0
