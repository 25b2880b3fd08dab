"""A call in a folder, to be made again: what it was given, and what the device made of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ratrain.check.call import Call
from ratrain.devices.operators import mapped
from ratrain.errors import SpecError
from ratrain.readers.json import read_json_table
from ratrain.readers.writing import write_whole

FORMAT = "ratrain call 1"
FILE, TENSORS = "call.json", "tensors.pt"


def keep_call(
    folder: Path, call: Call, results: list[Tensor], device: str, where: dict[str, Any]
) -> None:
    """Writes a call to its folder, in place of what was there."""
    tensors: dict[str, Tensor] = {}

    def written(x: Any) -> Any:
        if isinstance(x, Tensor):
            tensors[f"t{len(tensors)}"] = x.contiguous()
            return {"tensor": f"t{len(tensors) - 1}", "strides": list(x.stride())}
        if isinstance(x, torch.dtype | torch.device | torch.layout | torch.memory_format):
            return {"torch": str(x).removeprefix("torch."), "of": type(x).__name__}
        if isinstance(x, float):
            return {"float": x.hex()}
        return x

    body = {
        "format": FORMAT,
        "operator": call.name,
        "device": device,
        "narrow_terms": call.narrow_terms,
        "where": where,
        "args": mapped(written, list(call.args)),
        "kwargs": mapped(written, call.further),
        "results": mapped(written, results),
    }
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.save(tensors, folder / TENSORS)
    write_whole(folder / FILE, json.dumps(body, indent=1))


class KeptCall:
    """A folder that `keep_call` wrote."""

    def __init__(self, folder: Path) -> None:
        if not (folder / FILE).is_file():
            raise SpecError(
                f"holds no {FILE}: it is no call that `ratrain check` kept",
                place=str(folder),
                fix="give one of the folders that the report of `ratrain check` names",
            )
        body, _ = read_json_table(folder / FILE)
        try:
            if body["format"] != FORMAT:
                raise KeyError("format")
            tensors = torch.load(folder / TENSORS, weights_only=True)
            self.device = str(body["device"])
            self.where: dict[str, Any] = dict(body["where"])
            args, kwargs, results = (
                _read(body[name], tensors) for name in ("args", "kwargs", "results")
            )
            operator = operator_named(str(body["operator"]))
            self.call = Call(operator, tuple(args), kwargs, int(body["narrow_terms"]))
            self.results: list[Tensor] = results
        except SpecError:
            raise
        except Exception as error:
            raise SpecError(
                f"is damaged: {type(error).__name__} {error}",
                place=str(folder),
                fix="make the comparison again: `ratrain check JOB`",
            ) from error


def _read(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_read(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        kept = tensors[value["tensor"]]
        made = torch.empty_strided(kept.shape, value["strides"], dtype=kept.dtype)
        return made.copy_(kept)
    if "torch" in value:
        return torch.device(value["torch"]) if value["of"] == "device" else _constant(value)
    if "float" in value:
        return float.fromhex(value["float"])
    return {name: _read(each, tensors) for name, each in value.items()}


def _constant(value: dict[str, Any]) -> Any:
    found = getattr(torch, str(value["torch"]))
    if not isinstance(found, torch.dtype | torch.layout | torch.memory_format):
        raise TypeError(f"{value['torch']} is no dtype")
    return found


def operator_named(name: str) -> Any:
    """torch.ops.aten.mm.default of "aten.mm.default"."""
    space, operator, overload = name.split(".")
    if space == "ratrain":
        from ratrain.models.kernels import declare_operators

        declare_operators()
    found: Any = getattr(getattr(getattr(torch.ops, space), operator), overload)
    if not isinstance(found, torch._ops.OpOverload):
        raise TypeError(f"{name} is no operator")
    return found
