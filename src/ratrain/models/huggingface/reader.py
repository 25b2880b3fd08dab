"""Weights out of a Hugging Face folder, no more of them than a rank needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.huggingface.config import check_config
from ratrain.models.huggingface.names import FileNames, Stored
from ratrain.models.parameters import Parameter, UnitParameters
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.readers.files import exists, unreadable
from ratrain.readers.tensors import TensorEntry, tensor_header, tensor_index

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
CHUNK_BYTES = 64 << 20  # read at a time, in the file's dtype
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def read_range(
    folder: Path | str,
    spec: ModelSpec,
    unit_name: str,
    layout: UnitParameters,
    begin: int,
    end: int,
) -> Tensor:
    """Elements begin .. end of the unit's flat buffer in fp32; padding, and adapters, are zero.

    Memory beside the result: 64 MB. Raises SpecError where the folder's model is not `spec`, or
    a file or a tensor is missing, damaged or of another shape.
    """
    folder = Path(folder)
    check_config(folder, spec)
    files = tensor_files(folder)
    flat, names = torch.zeros(end - begin), FileNames(spec)
    for parameter, low, high in layout.overlaps(begin, end):
        if parameter.adapts:
            continue
        for part, place, path in _found(names, unit_name, layout, parameter, files, folder):
            first = part.offset - parameter.offset
            of_part = max(low - first, 0), min(high - first, part.elements)
            if of_part[0] < of_part[1]:
                at = part.offset + of_part[0] - begin
                _read_rows(path, place, part, *of_part, flat[at:])
    return flat


def check_weights(folder: Path | str, spec: ModelSpec) -> None:
    """Raises SpecError for whatever `read_range` would refuse: all but damaged numbers, which are
    not read."""
    folder = Path(folder)
    check_config(folder, spec)
    spec = spec.base
    files, names = tensor_files(folder), FileNames(spec)
    for unit in unit_names(spec):
        layout = unit_layout(spec, unit)
        for parameter in layout.parameters:
            for _, place, path in _found(names, unit, layout, parameter, files, folder):
                _entry(path, place)


def tensor_files(folder: Path) -> dict[str, Path]:
    """The file of every tensor, from the index or from the one file."""
    index = folder / INDEX
    if not exists(index):
        single = folder / SINGLE
        if not exists(single):
            raise SpecError(
                f"there is neither {SINGLE} nor {INDEX}",
                place=str(folder),
                fix="give the folder of a Hugging Face model in safetensors format",
            )
        return dict.fromkeys(_header(single), single)
    return tensor_index(index)


def _found(
    names: FileNames,
    unit: str,
    layout: UnitParameters,
    parameter: Parameter,
    files: dict[str, Path],
    folder: Path,
) -> Iterator[tuple[Parameter, Stored, Path]]:
    """A parameter, or its matrices one by one, each with its place and its file."""
    parts = names.parts_of(unit, parameter)
    held = next(parts)
    if held.place.tensor not in files:
        other = replace(names, also=True).parts_of(unit, parameter)
        first = next(other)
        if first.place.tensor in files:
            held, parts = first, other
    for each in chain([held], parts):
        path, place = _file_of(each.place, layout, parameter, files, folder)
        yield each.parameter, place, path


def _file_of(
    place: Stored,
    layout: UnitParameters,
    parameter: Parameter,
    files: dict[str, Path],
    folder: Path,
) -> tuple[Path, Stored]:
    """The file that holds a parameter, and its place there. Files of a model without its head, as
    GPT-2 is published, lack the first word of all names."""
    bare = replace(place, tensor=place.tensor.partition(".")[2])
    if place.tensor not in files and bare.tensor in files:
        place = bare
    _check_no_bias(place, layout, parameter, files)
    path = files.get(place.tensor)
    if path is None:
        raise SpecError(
            f'the tensor "{place.tensor}" is missing',
            place=str(folder),
            fix="use a folder with all of the model's weights",
        )
    return path, place


def _read_rows(
    path: Path, place: Stored, parameter: Parameter, low: int, high: int, flat: Tensor
) -> None:
    """Elements low .. high of a parameter, read in chunks of whole rows of its part."""
    width = parameter.elements // parameter.shape[0]
    start = parameter.window[0].start
    columns = parameter.window[1:]
    entry = _entry(path, place)
    with _open(path) as file:
        part = file.get_slice(place.tensor)
        rows = max(1, CHUNK_BYTES // (width * _FLOATS[entry.dtype]))
        for row in range(low // width, -(-high // width), rows):
            last = min(row + rows, -(-high // width))
            values = _rows_of(part, place, slice(start + row, start + last), columns).reshape(-1)
            first, end = max(low, row * width), min(high, last * width)
            flat[first - low : end - low] = values[first - row * width : end - row * width]


def _rows_of(part: Any, place: Stored, rows: slice, columns: tuple[slice, ...]) -> Tensor:
    """Rows of a parameter, of these columns."""
    pieces: list[Tensor] = []
    for first, count in place.runs(rows.start, rows.stop):
        run = slice(first, first + count)
        if place.transposed:
            pieces.append(part[(*columns, run)].t())
        else:
            pieces.append(part[(*place.of(run), *columns)])
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _entry(path: Path, place: Stored) -> TensorEntry:
    """What the file's header says of a tensor, its shape and dtype checked."""
    entry = _header(path).get(place.tensor)
    if entry is None:
        raise SpecError(
            f'the tensor "{place.tensor}" is missing',
            place=str(path),
            fix="fetch the file and its index again",
        )
    if entry.shape != place.shape:
        raise SpecError(
            f'the tensor "{place.tensor}" has shape {entry.shape}, the model needs {place.shape}',
            place=f"{path} {place.tensor}",
            fix="take the model from the folder's config.json",
        )
    if entry.dtype not in _FLOATS:
        raise SpecError(
            f'the tensor "{place.tensor}" has dtype {entry.dtype}',
            place=f"{path} {place.tensor}",
            fix="use weights in F32, BF16 or F16, not quantised ones",
        )
    return entry


def _header(path: Path) -> dict[str, TensorEntry]:
    """The header of a file, read once as long as the file stays as it is."""
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return _header_of(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _header_of(path: Path, _mtime_ns: int, _size_bytes: int) -> dict[str, TensorEntry]:
    return tensor_header(path)


def _open(path: Path) -> Any:
    try:
        return cast("Any", safe_open)(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise SpecError(
            f"not a safetensors file: {error}", place=str(path), fix="fetch the file again"
        ) from error


def _check_no_bias(
    place: Stored, layout: UnitParameters, parameter: Parameter, files: dict[str, Path]
) -> None:
    """Files with a bias that the model leaves out would give other numbers, silently."""
    if len(parameter.shape) == 1 or not parameter.name.endswith(".weight"):
        return
    bias = place.tensor.removesuffix(".weight") + ".bias"
    ours = parameter.name.removesuffix(".weight") + ".bias"
    if bias in files and ours not in layout.by_name:
        raise SpecError(
            f'there is a tensor "{bias}", but the model has no such bias',
            place=str(files[bias]),
            fix="set qkv_bias, output_bias or mlp_bias of the model",
        )
