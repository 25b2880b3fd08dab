"""Weights out of a Hugging Face folder, no more of them than a rank needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.huggingface_names import Place, naming, place_of
from ratrain.models.parameters import Parameter, UnitParameters

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
CHUNK_BYTES = 64 << 20  # read at a time, in the file's dtype
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_COMPARED = (
    *("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "position"),
    *("activation", "norm", "gated_mlp", "qkv_bias", "output_bias", "mlp_bias"),
    *("tied_embeddings", "norm_head", "norm_epsilon"),
)


def read_range(
    folder: Path | str,
    spec: ModelSpec,
    unit_name: str,
    layout: UnitParameters,
    begin: int,
    end: int,
) -> Tensor:
    """Elements begin .. end of the unit's flat buffer in fp32; padding is zero.

    Memory beside the result: 64 MB. Raises SpecError where the folder's model is not `spec`, or
    a file or a tensor is missing, damaged or of another shape.
    """
    folder = Path(folder)
    check_config(folder, spec)
    files = tensor_files(folder)
    out = torch.zeros(end - begin)
    for parameter, low, high in layout.overlaps(begin, end):
        place = place_of(spec, unit_name, parameter.name, parameter.whole_shape)
        _check_no_bias(place, layout, parameter, files)
        path = files.get(place.tensor)
        if path is None:
            raise SpecError(
                f'the tensor "{place.tensor}" is missing',
                place=str(folder),
                fix="use a folder with all of the model's weights",
            )
        at = parameter.offset + low - begin
        _read_rows(path, place, parameter, low, high, out[at : at + high - low])
    return out


def check_config(folder: Path, spec: ModelSpec) -> None:
    """Raises SpecError where the folder's config.json describes another model than `spec`."""
    path = folder / CONFIG
    found = load_config(path)
    keys = (*_COMPARED, "rope_theta") if spec.position == "rope" else _COMPARED
    for key in keys:
        here, wanted = getattr(found, key), getattr(spec, key)
        if here != wanted:
            raise SpecError(
                f"{key} is {here!r} there and {wanted!r} in the job's model",
                place=str(path),
                fix="take the model from the folder's config.json",
            )
    if naming(found) != naming(spec):
        raise SpecError(
            f"the family is {found.family} there and {spec.family} in the job's model",
            place=str(path),
            fix="take the model from the folder's config.json",
        )
    _check_positions(path, found)


def tensor_files(folder: Path) -> dict[str, Path]:
    """The file of every tensor, from the index or from the one file."""
    index = folder / INDEX
    if not index.exists():
        single = folder / SINGLE
        if not single.exists():
            raise SpecError(
                f"there is neither {SINGLE} nor {INDEX}",
                place=str(folder),
                fix="name a folder of a Hugging Face model in safetensors format",
            )
        with _open(single) as file:
            return dict.fromkeys(file.keys(), single)
    table = _json(index).get("weight_map")
    if not isinstance(table, dict):
        raise SpecError('there is no table "weight_map"', place=str(index), fix="fetch it again")
    names = cast("dict[str, str]", table)
    return {name: folder / str(file) for name, file in names.items()}


def _read_rows(
    path: Path, place: Place, parameter: Parameter, low: int, high: int, out: Tensor
) -> None:
    """Elements low .. high of a parameter, read in chunks of whole rows of its part."""
    width = parameter.elements // parameter.shape[0]
    first_row = place.first_row + parameter.window[0].start
    columns = parameter.window[1:]
    with _open(path) as file:
        part = _slice(file, path, place)
        rows = max(1, CHUNK_BYTES // (width * _FLOATS[part.get_dtype()]))
        for row in range(low // width, -(-high // width), rows):
            last = min(row + rows, -(-high // width))
            values = part[(slice(first_row + row, first_row + last), *columns)].reshape(-1)
            first, end = max(low, row * width), min(high, last * width)
            out[first - low : end - low] = values[first - row * width : end - row * width]


def _slice(file: Any, path: Path, place: Place) -> Any:
    """The tensor's slice, its shape and dtype checked."""
    try:
        part = file.get_slice(place.tensor)
    except SafetensorError as error:
        raise SpecError(
            f'the tensor "{place.tensor}" is missing',
            place=str(path),
            fix="fetch the file and its index again",
        ) from error
    shape = tuple(part.get_shape())
    if shape != place.shape:
        raise SpecError(
            f'the tensor "{place.tensor}" has shape {shape}, the model wants {place.shape}',
            place=str(path),
            fix="take the model from the folder's config.json",
        )
    if part.get_dtype() not in _FLOATS:
        raise SpecError(
            f'the tensor "{place.tensor}" has dtype {part.get_dtype()}',
            place=str(path),
            fix="use weights in F32, BF16 or F16, not quantised ones",
        )
    return part


def _open(path: Path) -> Any:
    try:
        return cast("Any", safe_open)(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        what = "the file is missing" if not path.exists() else f"not a safetensors file: {error}"
        raise SpecError(what, place=str(path), fix="fetch the file again") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(
            f"not valid JSON: {error}", place=str(path), fix="fetch it again"
        ) from error
    return cast("dict[str, Any]", table) if isinstance(table, dict) else {}


def _check_no_bias(
    place: Place, layout: UnitParameters, parameter: Parameter, files: dict[str, Path]
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


def _check_positions(path: Path, found: ModelSpec) -> None:
    """Scaled rotary angles and sliding windows are not computed here."""
    config = _json(path)
    scaling: Any = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(scaling, dict):
        raise SpecError("not a table", place=f"{path} rope_scaling", fix="set it to null")
    table = cast("dict[str, Any]", scaling)
    kind = table.get("rope_type", table.get("type", "default"))
    if kind != "default":
        raise SpecError(
            f'rotary positions of type "{kind}" are not supported',
            place=f"{path} rope_scaling",
            fix='use a model with rope_type "default"',
        )
    window: Any = config.get("sliding_window")
    wide = window is None or (isinstance(window, int) and window >= found.max_positions)
    if config.get("use_sliding_window", True) and not wide:
        raise SpecError(
            f"attention in a sliding window of {window} tokens is not supported",
            place=f"{path} sliding_window",
            fix="set sliding_window to null if your sequences are no longer than it",
        )
