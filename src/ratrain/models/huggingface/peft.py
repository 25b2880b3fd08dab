"""Low-rank adapters written as PEFT's folder: adapter_config.json and adapter_model.safetensors.

Where a file of the model holds several of our matrices as one, their B lie in it as they do, one
below the other or head by head, and A is theirs together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor

from ratrain.describe.model import ModelSpec
from ratrain.models.huggingface.names import FileNames, Stored
from ratrain.models.parameters import UnitParameters
from ratrain.models.shapes import unit_layout, unit_names

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."


def write_adapters(
    folder: Path,
    spec: ModelSpec,
    dtype: torch.dtype,
    source: Callable[[str], Tensor],
    base: str | None,
) -> None:
    """Writes the adapters of a model; source(unit name) is the flat buffer of what is trained of a
    unit. `base`: where the model's own weights are. The config comes last: a folder without it is
    unfinished."""
    lora = spec.tuning and spec.tuning.lora
    assert lora is not None
    tensors: dict[str, Tensor] = {}
    for unit in unit_names(spec):
        tensors.update(_of_unit(spec, unit, source, dtype))
    partial = folder / f"{WEIGHTS}.partial"
    folder.mkdir(parents=True, exist_ok=True)
    save_file = cast("Any", safetensors.torch).save_file
    save_file(tensors, str(partial), metadata={"format": "pt"})
    partial.replace(folder / WEIGHTS)
    modules = [n.removeprefix(_PREFIX).removesuffix(".lora_A.weight") for n in tensors if "_A" in n]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": bool(FileNames(spec.base).family.transposed),
        "target_modules": _targets(modules, spec.layers),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _of_unit(
    spec: ModelSpec, unit: str, source: Callable[[str], Tensor], dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    layout, names = unit_layout(spec, unit), FileNames(spec.base)
    if not layout.adapters:
        return
    flat = source(unit)
    whole: dict[str, tuple[str, list[tuple[Stored, Tensor]]]] = {}
    for adapter in layout.adapters:
        matrix = layout.by_name[f"{adapter.module}.weight"]
        place = names.place_of(unit, matrix.name, matrix.shape)
        parts = whole.setdefault(place.tensor.removesuffix(".weight"), (adapter.a, []))[1]
        parts.append((place, _values(layout, adapter.b, flat)))
    for module, (a, parts) in whole.items():
        yield f"{_PREFIX}{module}.lora_A.weight", _values(layout, a, flat).to(dtype).contiguous()
        rows = sum(len(values) for _, values in parts)
        stacked = torch.empty(rows, parts[0][1].shape[1], dtype=dtype)
        for place, values in parts:
            at = 0
            for first, count in place.runs(0, len(values)):
                stacked[first : first + count] = values[at : at + count]
                at += count
        yield f"{_PREFIX}{module}.lora_B.weight", stacked


def _values(layout: UnitParameters, name: str, flat: Tensor) -> Tensor:
    held = layout.by_name[name]
    return flat[held.offset : held.end].view(held.shape)


def _targets(modules: Iterable[str], layers: int) -> list[str]:
    """Modules without their layer, where every layer has one; else their whole names."""
    by_place: dict[str, list[str]] = {}
    for module in modules:
        parts = module.split(".")
        number = next(place for place, part in enumerate(parts) if part.isdecimal())
        by_place.setdefault(".".join(parts[number + 1 :]), []).append(module)
    targets: list[str] = []
    for place, of_layers in by_place.items():
        targets += [place] if len(of_layers) == layers else of_layers
    return sorted(targets)
