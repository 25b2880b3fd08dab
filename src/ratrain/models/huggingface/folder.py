"""What a Hugging Face folder holds beside its weights, and goes with them where they are written.

A config says more than sizes: which tokens begin and end a text, how weights are initialised, which
code runs the model. The folder that a run began from has all of this, so an export keeps that
folder's config and changes only the dtype.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec
from ratrain.errors import RatrainError
from ratrain.readers.json import read_json_table

DTYPE_KEYS = ("dtype", "torch_dtype")
"""Of a config.json: as transformers 5 writes it, and as earlier ones did."""
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""The names of a config.json, and a job's."""

_OF_MODEL = ("generation_config.json", "LICENSE*", "NOTICE*", "USE_POLICY*")
_OF_TOKENIZER = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "vocab.json", "vocab.txt", "merges.txt"),
    *("chat_template.json", "chat_template.jinja", "additional_chat_templates"),
)
_CODE = "*.py"
"""A folder whose config names code of its own ("auto_map") cannot be loaded without it."""


def config_of_folder(path: Path, spec: ModelSpec) -> dict[str, Any] | None:
    """The config.json that describes `spec`; None where the file is gone or describes another
    model by now."""
    try:
        described = load_config(path)
    except RatrainError:
        return None
    if replace(described, name=spec.name, source=spec.source) != spec:
        return None
    return read_json_table(path)[0]


def with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The config of the same model with its weights in `dtype` ("float32"), not quantised."""
    keys = [key for key in DTYPE_KEYS if key in config] or DTYPE_KEYS
    settings = {key: value for key, value in config.items() if key != "quantization_config"}
    return {**settings, **dict.fromkeys(keys, dtype)}


def dtype_of(config: dict[str, Any]) -> str | None:
    """The dtype that a config says its weights have, as a job names it; None where it says none
    of the three that can be written."""
    for key in DTYPE_KEYS:
        name = config.get(key)
        if isinstance(name, str) and name in DTYPES:
            return DTYPES[name]
    return None


def copy_beside_model(source: Path, out: Path) -> None:
    """Copies what the folder of a config.json holds for the model beside config and weights."""
    code = (_CODE,) if "auto_map" in read_json_table(source / "config.json")[0] else ()
    _copy(source, (*_OF_MODEL, *code), out)


def copy_tokenizer(tokenizer: Path, out: Path, end_token: str) -> None:
    """Copies a tokenizer.json, and the files beside it that belong to it. Where nothing beside it
    says how it is used, a tokenizer_config.json that does is written."""
    folder = tokenizer.parent
    shutil.copyfile(tokenizer, out / "tokenizer.json")
    config = folder / "tokenizer_config.json"
    code = (_CODE,) if config.exists() and "auto_map" in read_json_table(config)[0] else ()
    _copy(folder, (*_OF_TOKENIZER, *code), out)
    if not config.exists():
        table = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end_token}
        (out / config.name).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


def _copy(source: Path, patterns: Iterable[str], out: Path) -> None:
    for pattern in patterns:
        for path in sorted(source.glob(pattern)):
            if path.is_dir():
                shutil.copytree(path, out / path.name, dirs_exist_ok=True)
            else:
                shutil.copyfile(path, out / path.name)
