"""A run's weights written as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ratrain.corpus.tokenizer import BYTES, HuggingFaceTokenizer, Tokenizer, tokenizer_of
from ratrain.describe.huggingface import config_of
from ratrain.errors import SpecError
from ratrain.models.huggingface import require_no_weights, write_model
from ratrain.models.huggingface.folder import (
    config_of_folder,
    copy_beside_model,
    copy_tokenizer,
    dtype_of,
)
from ratrain.models.huggingface.peft import WEIGHTS, write_adapters
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.runtime.run.trained import TOKENIZER, TrainedModel, trained_model
from ratrain.runtime.step.states import DTYPES


@dataclass(frozen=True)
class Exported:
    """What was written. `source`: the folder whose config was kept, where there was one."""

    step: int | None
    size_bytes: int
    dtype: str
    source: Path | None


def export_run(
    run: Path,
    out: Path,
    dtype: str | None = None,
    step: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Writes the weights of a run's checkpoint, with what the folder that it began from says of the
    model and holds beside it, and its tokenizer where that is a file. `dtype` None: that of the
    folder's config, else fp32. `progress` takes parameters written and their number."""
    model = trained_model(run, step)
    weights = model.source if progress is None else _counted(model, progress)
    tokenizer = _tokenizer(model)
    source, config = _config(model, tokenizer)
    dtype = dtype or dtype_of(config) or "fp32"
    require_no_weights(out)
    try:
        if source is not None:
            copy_beside_model(source, out)
        if isinstance(tokenizer, HuggingFaceTokenizer):
            copy_tokenizer(_file(model), out, tokenizer.end_token)
        write_model(out, model.spec, DTYPES[dtype], weights, config=config)
    except OSError as error:
        raise SpecError(
            f"cannot be written: {error.strerror}", place=str(out), fix="choose another folder"
        ) from error
    size_bytes = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    return Exported(model.step, size_bytes, dtype, source)


def export_adapters(
    run: Path, out: Path, dtype: str | None = None, step: int | None = None
) -> Exported:
    """Writes the adapters that a run has trained, without the model, as a PEFT folder. `dtype`
    None: fp32."""
    model = trained_model(run, step)
    if model.adapters is None:
        raise SpecError(
            "has no adapters: the weights of the model itself were trained",
            place=str(run),
            fix="leave --adapters out",
        )
    if (out / WEIGHTS).exists():
        raise SpecError("holds adapters already", place=str(out), fix="choose another folder")
    dtype = dtype or "fp32"
    source = next((path.parent for path in model.configs if path.exists()), None)
    base = None if source is None else str(source.resolve())
    try:
        write_adapters(out, model.adapters.spec, DTYPES[dtype], model.adapters.source, base)
    except OSError as error:
        raise SpecError(
            f"cannot be written: {error.strerror}", place=str(out), fix="choose another folder"
        ) from error
    return Exported(model.step, (out / WEIGHTS).stat().st_size, dtype, source)


def _config(model: TrainedModel, tokenizer: Tokenizer) -> tuple[Path | None, dict[str, Any]]:
    """The folder that the model began from and its config, where it is there still; else a config
    that says what is known."""
    for path in model.configs:
        config = config_of_folder(path, model.spec)
        if config is not None:
            if config.get("eos_token_id") is None:
                config["eos_token_id"] = tokenizer.end_id
            return path.parent, config
    return None, config_of(model.spec, tokenizer.end_id)


def _tokenizer(model: TrainedModel) -> Tokenizer:
    if model.tokenizer != BYTES and not _file(model).exists():
        raise SpecError(
            "the tokenizer that the run was trained with is gone",
            place=str(_file(model)),
            fix="put it back: an export includes a copy of it",
        )
    return tokenizer_of(model.tokenizer, model.base)


def _file(model: TrainedModel) -> Path:
    """The tokenizer.json of a model that has one."""
    path = model.base / model.tokenizer
    return path / TOKENIZER if path.is_dir() else path


def _counted(model: TrainedModel, progress: Callable[[int, int], None]) -> Callable[[str], Tensor]:
    """The model's source of units, which says how far it was read."""
    sizes = {name: unit_layout(model.spec, name).size for name in unit_names(model.spec)}
    total, done = sum(sizes.values()), 0

    def source(unit: str) -> Tensor:
        nonlocal done
        progress(done, total)
        done += sizes[unit]
        return model.source(unit)

    return source
