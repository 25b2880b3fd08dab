"""What a Hugging Face folder's config.json must say for its model to be computed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.huggingface_names import naming
from ratrain.readers.json import read_json_table

CONFIG = "config.json"
_COMPARED = (
    *("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "position"),
    *("activation", "norm", "gated_mlp", "qkv_bias", "output_bias", "mlp_bias"),
    *("tied_embeddings", "norm_head", "norm_epsilon"),
)


def check_config(folder: Path, spec: ModelSpec) -> None:
    """Raises SpecError where the folder's config.json describes another model than `spec`."""
    path = folder / CONFIG
    theirs = load_config(path)
    keys = (*_COMPARED, "rope_theta") if spec.position == "rope" else _COMPARED
    for key in keys:
        in_config, in_job = getattr(theirs, key), getattr(spec, key)
        if in_config != in_job:
            raise SpecError(
                f"{key} is {in_config!r} here and {in_job!r} in the job's model",
                place=str(path),
                fix="take the model from the folder's config.json",
            )
    if naming(theirs) != naming(spec):
        raise SpecError(
            f"the family is {theirs.family} here and {spec.family} in the job's model",
            place=str(path),
            fix="take the model from the folder's config.json",
        )
    check_attention(path, theirs)


def check_attention(path: Path, spec: ModelSpec) -> None:
    """Raises SpecError where the config.json of `spec` asks for scaled or partial rotary angles,
    or for attention in a sliding window: none of them is computed here."""
    config, _ = read_json_table(path)
    name, rotary = _rotary(path, config)
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind != "default":
        raise SpecError(
            f'rotary positions of type "{kind}" are not supported',
            place=f"{path} {name}",
            fix='use a model with rope_type "default"',
        )
    share: Any = rotary.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
    if share != 1.0:
        raise SpecError(
            f"rotary positions of {share} of each head are not supported",
            place=f"{path} partial_rotary_factor",
            fix="use a model whose heads are rotated whole",
        )
    window: Any = config.get("sliding_window")
    wide = window is None or (isinstance(window, int) and window >= spec.max_positions)
    if config.get("use_sliding_window", True) and not wide:
        raise SpecError(
            f"attention in a sliding window of {window} tokens is not supported",
            place=f"{path} sliding_window",
            fix="set sliding_window to null if your sequences fit in it",
        )


def _rotary(path: Path, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The table that says how angles are made, and its name: transformers 5 calls it otherwise."""
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    table: Any = config.get(name) or {}
    if not isinstance(table, dict):
        raise SpecError("not a table", place=f"{path} {name}", fix="set it to null")
    return name, cast("dict[str, Any]", table)
