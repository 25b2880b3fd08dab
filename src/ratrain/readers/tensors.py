"""Safetensors: the header of one file, and the index of a model that is cut into several.

The library that maps the tensors checks its own; this says beforehand what is wrong, and where.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

from ratrain.errors import SpecError
from ratrain.readers.files import check_name, check_regular, inside, shown, unreadable
from ratrain.readers.json import as_table, parse_json, read_json_table
from ratrain.readers.limits import TENSOR_HEADER_BYTES
from ratrain.readers.place import Place

ELEMENT_BITS = {
    **{"F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32},
    **{"F16": 16, "BF16": 16, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8},
    **{"F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4},
}
_AGAIN = "fetch the file again"


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file; `begin` counts bytes from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def tensor_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a file by name; a SpecError says what of its header is wrong."""
    text, data_bytes = _header(path)
    table, place = as_table(*parse_json(text, str(path)))
    entries = {
        name: _entry(value, place.at(name))
        for name, value in table.items()
        if name != "__metadata__"
    }
    reached = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != reached:
            raise _wrong(f"begins at byte {entry.begin:,}, not {reached:,}", place.at(name))
        reached = entry.end
    if reached != data_bytes:
        raise SpecError(
            f"its tensors take {reached:,} bytes, the file has {data_bytes:,} for them",
            place=str(path),
            fix=_AGAIN,
        )
    return entries


def tensor_index(path: Path) -> dict[str, Path]:
    """The file of each tensor, by the `weight_map` of an index; none lies outside of its folder."""
    table, place = read_json_table(path)
    map_place = place.at("weight_map")
    if "weight_map" not in table:
        raise SpecError('the key "weight_map" is missing', place=str(path), fix=_AGAIN)
    names, _ = as_table(table["weight_map"], map_place)
    if not names:
        raise SpecError("does not name a tensor", place=str(map_place), fix=_AGAIN)
    return {
        name: inside(path.parent, file, str(map_place.at(name))) for name, file in names.items()
    }


def _header(path: Path) -> tuple[bytes, int]:
    """The header's bytes, and how many bytes follow it."""
    check_name(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            check_regular(path, status.st_mode)
            length = int.from_bytes(file.read(8), "little")
            if length > min(TENSOR_HEADER_BYTES, status.st_size - 8):
                raise SpecError(
                    f"not a safetensors file: a header of {length:,} bytes in a file of "
                    f"{status.st_size:,}",
                    place=str(path),
                    fix=_AGAIN,
                )
            return file.read(length), status.st_size - 8 - length
    except OSError as error:
        raise unreadable(path, error) from error


def _entry(value: Any, place: Place) -> TensorEntry:
    table, _ = as_table(value, place)
    dtype, shape, offsets = (table.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in ELEMENT_BITS:
        raise _wrong(f"{shown(dtype)} is not an element type", place.at("dtype"))
    if not _are_sizes(shape):
        raise _wrong(f"{shown(shape)} is not a shape", place.at("shape"))
    if not _are_sizes(offsets) or len(cast("list[int]", offsets)) != 2:
        raise _wrong(f"{shown(offsets)} are not two offsets", place.at("data_offsets"))
    sizes, (begin, end) = tuple(cast("list[int]", shape)), cast("list[int]", offsets)
    bits = prod(sizes) * ELEMENT_BITS[dtype]
    if bits != 8 * (end - begin):
        raise _wrong(
            f"a shape of {bits // 8:,} bytes has {end - begin:,}", place.at("data_offsets")
        )
    return TensorEntry(dtype, sizes, begin, end)


def _are_sizes(value: Any) -> bool:
    """Whether a value is a list of whole numbers that a file can have."""
    return (
        isinstance(value, list)
        and len(cast("list[Any]", value)) <= 8
        and all(
            isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 1 << 62
            for size in cast("list[Any]", value)
        )
    )


def _wrong(problem: str, place: Place) -> SpecError:
    return SpecError(problem, place=str(place), fix=_AGAIN)
