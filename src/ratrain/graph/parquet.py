"""Arrays of numbers in Parquet files: a column for each, or lists of numbers in one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ratrain.errors import SpecError
from ratrain.readers.files import check_name, check_regular, unreadable, unwritable

Array = npt.NDArray[Any]
ROWS = 1 << 16
"""Read at once."""


def parquet_rows(path: Path, columns: int | None = None) -> Iterator[Array]:
    """The rows of a file, some at a time; of its first so many columns."""
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    check_name(path)
    try:
        check_regular(path, path.stat().st_mode)
        with parquet.ParquetFile(path, memory_map=True) as file:
            names = file.schema_arrow.names[:columns]
            for batch in file.iter_batches(ROWS, columns=names, use_threads=False):
                batch.validate(full=True)
                yield np.column_stack([_numbers(arrow, column, path) for column in batch.columns])
    except OSError as error:
        raise unreadable(path, error) from error
    except (arrow.ArrowException, ValueError) as error:
        what = f"is no Parquet file of numbers: {str(error)[:200]}"
        raise SpecError(what, place=str(path), fix="write it again") from None


def _numbers(arrow: Any, column: Any, path: Path) -> Array:
    """A column as an array of rows; lists in it are all of one length."""
    if arrow.types.is_list(column.type) or arrow.types.is_fixed_size_list(column.type):
        flat = column.flatten().to_numpy(zero_copy_only=False)
        rows = flat.reshape(len(column), -1) if len(column) else flat.reshape(0, 0)
    else:
        rows = column.to_numpy(zero_copy_only=False)
    if rows.dtype.kind not in "biuf":
        what = f"holds {column.type}, not numbers"
        raise SpecError(what, place=str(path), fix="save numbers, or lists of them")
    return rows


def parquet_array(path: Path, columns: int | None = None) -> Array:
    """All rows, in memory."""
    rows = list(parquet_rows(path, columns))
    return np.concatenate(rows) if rows else np.zeros((0, columns or 1))


def parquet_on_disk(path: Path) -> Array:
    """All rows, mapped from a file without a name beside it, which is gone when nobody has it: rows
    of a Parquet file cannot be read one by one."""
    dtype, width, count = np.dtype(np.float32), 0, 0
    try:
        file = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115  the array keeps it
    except OSError as error:
        raise unwritable(path.parent, error) from error
    for rows in parquet_rows(path):
        if not count:
            dtype, width = np.result_type(rows.dtype, np.float32), rows.shape[1]
        if rows.shape[1] != width:
            what = f"its rows from {count:,} on have {rows.shape[1]} numbers, others {width}"
            raise SpecError(what, place=str(path), fix="save as many for each node")
        try:
            rows.astype(dtype).tofile(file)
        except OSError as error:
            raise unwritable(path.parent, error) from error
        count += len(rows)
    return np.memmap(file, dtype, "r", shape=(count, width)) if count else np.zeros((0, width))
