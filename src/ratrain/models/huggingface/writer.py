"""A model written as a Hugging Face folder, unit by unit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor

from ratrain.describe.huggingface import config_of
from ratrain.describe.model import ModelSpec
from ratrain.describe.parameters import LOGITS
from ratrain.errors import SpecError
from ratrain.models.huggingface.config import CONFIG
from ratrain.models.huggingface.folder import with_dtype
from ratrain.models.huggingface.names import FileNames, FileTensor
from ratrain.models.huggingface.reader import INDEX, SINGLE
from ratrain.models.parameters import Parameter
from ratrain.models.shapes import HEAD, unit_layout, unit_names

SHARD_BYTES = 5_000_000_000


def write_model(
    folder: Path | str,
    spec: ModelSpec,
    dtype: torch.dtype,
    source: Callable[[str], Tensor],
    max_shard_bytes: int = SHARD_BYTES,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Writes config.json and the weights in `dtype`; source(unit name) is the unit's flat buffer.
    `config`: what config.json says but for the dtype; left out: what follows from `spec`.

    Units are asked for once each, in the order of the forward pass. Memory: one file's tensors
    and two copies of a unit. The folder must not hold weights yet. A tied model's head is left
    out, and must be equal to its embedding. config.json comes last: a folder without it is
    unfinished.
    """
    folder = Path(folder)
    config = with_dtype(dict(config or config_of(spec)), str(dtype).removeprefix("torch."))
    require_no_weights(folder)
    names = FileNames(spec)
    tensors = names.tensors()
    files = _shards(tensors, dtype.itemsize, max_shard_bytes)
    writer = _Writer(folder, tensors, files, names.embedding)
    for unit in unit_names(spec):
        flat = source(unit)
        writer.take(_unit_tensors(unit, flat, dtype, tensors))
        if unit == HEAD and spec.tied_embeddings:
            writer.check_tied(_parameter(spec, HEAD, LOGITS, flat).to(dtype), spec)
    if len(set(files.values())) > 1:
        size = sum(tensor.elements for tensor in tensors) * dtype.itemsize
        _write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": files})
    _write_json(folder / CONFIG, config)


def named_tensors(
    spec: ModelSpec, dtype: torch.dtype, source: Callable[[str], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Copies of all weights by their names in a Hugging Face folder; source(unit name) is the
    unit's flat buffer."""
    tensors = FileNames(spec).tensors()
    for unit in unit_names(spec):
        yield from _unit_tensors(unit, source(unit), dtype, tensors).items()


class _Writer:
    """Tensors of the file being filled; a file is written when its last one has come."""

    def __init__(
        self, folder: Path, tensors: list[FileTensor], files: dict[str, str], embedding: str
    ) -> None:
        self._folder, self._files, self._embedding_tensor = folder, files, embedding
        self._last = {files[tensor.name]: tensor.name for tensor in tensors}
        self._held: dict[str, Tensor] = {}
        self._embedding = b""

    def take(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._held[name] = tensor
            if name == self._embedding_tensor:
                self._embedding = _digest(tensor)
            file = self._files[name]
            if self._last[file] == name:
                path = self._folder / file
                partial = path.with_suffix(".partial")
                partial.touch()
                mode = partial.stat().st_mode  # by the umask; the library's own is for one user
                save_file = cast("Any", safetensors.torch).save_file
                save_file(self._held, str(partial), metadata={"format": "pt"})
                partial.chmod(mode)
                partial.replace(path)
                self._held = {}

    def check_tied(self, head: Tensor, spec: ModelSpec) -> None:
        if _digest(head) != self._embedding:
            raise SpecError(
                "the head differs from the embedding, but the model ties them",
                place=f"model {spec.name}",
                fix="set tied_embeddings = false",
            )


def _unit_tensors(
    unit: str, flat: Tensor, dtype: torch.dtype, tensors: list[FileTensor]
) -> dict[str, Tensor]:
    """The file's tensors of one unit, copies in `dtype` on the CPU."""
    converted: dict[str, Tensor] = {}
    for tensor in (tensor for tensor in tensors if tensor.unit == unit):
        whole = torch.empty(tensor.shape, dtype=dtype)
        for held in tensor.parts:
            values, row = _values(held.parameter, flat), 0
            into = whole.t() if held.place.transposed else whole
            for first, count in held.place.runs(0, values.shape[0]):
                into[held.place.of(slice(first, first + count))] = values[row : row + count]
                row += count
        converted[tensor.name] = whole
    return converted


def _parameter(spec: ModelSpec, unit: str, name: str, flat: Tensor) -> Tensor:
    return _values(unit_layout(spec, unit).by_name[name], flat)


def _values(parameter: Parameter, flat: Tensor) -> Tensor:
    return flat[parameter.offset : parameter.end].view(parameter.shape)


def _shards(tensors: list[FileTensor], item_bytes: int, max_bytes: int) -> dict[str, str]:
    """The file of each tensor: filled in order, one larger than a file has its own."""
    numbers: dict[str, int] = {}
    number, file_bytes = 1, 0
    for tensor in tensors:
        size = tensor.elements * item_bytes
        if file_bytes and file_bytes + size > max_bytes:
            number, file_bytes = number + 1, 0
        file_bytes += size
        numbers[tensor.name] = number
    if number == 1:
        return dict.fromkeys(numbers, SINGLE)
    return {name: f"model-{n:05}-of-{number:05}.safetensors" for name, n in numbers.items()}


def require_no_weights(folder: Path) -> None:
    """Makes the folder; SpecError where it cannot be written, or holds weights already."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        weights = sorted(path.name for path in folder.glob("*.safetensors*"))
    except OSError as error:
        raise SpecError(
            f"cannot write there: {error.strerror}", place=str(folder), fix="choose another folder"
        ) from error
    if weights:
        raise SpecError(
            f"weights already exist ({weights[0]})", place=str(folder), fix="choose a new folder"
        )


def _digest(tensor: Tensor) -> bytes:
    return blake2b(tensor.cpu().contiguous().view(torch.uint8).numpy().data).digest()


def _write_json(path: Path, table: dict[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
