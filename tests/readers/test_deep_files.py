"""Brackets nested thousands deep, in every kind of JSON file that is read: one message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratrain.corpus.tokenizer import HuggingFaceTokenizer
from ratrain.describe.huggingface import load_config
from ratrain.errors import RatrainError
from ratrain.plan import load_plan
from ratrain.readers.json import read_json
from ratrain.readers.tensors import tensor_header, tensor_index
from ratrain.readers.toml import read_toml
from ratrain.runtime.failures import read_failure
from ratrain.runtime.run_files import (
    read_case,
    read_metrics,
    read_prediction,
    read_records,
    trained_case,
)
from ratrain.runtime.run_folder import RunFolder
from ratrain.timeline.timeline import read_timeline

READERS: dict[str, Callable[[Path], Any]] = {
    "any JSON": read_json,
    "tokenizer": HuggingFaceTokenizer,
    "weights index": tensor_index,
    "model": load_config,
    "plan": load_plan,
    "case": read_case,
    "trained case": trained_case,
    "prediction": lambda path: read_prediction(path, 1),
    "records": lambda path: read_records(path, 0),
    "metrics": lambda path: list(read_metrics(path)),
    "timeline": read_timeline,
    "failure": read_failure,
    "facts": lambda path: RunFolder(path.parent).read_spec(),
    "TOML": read_toml,
}
NESTED = {
    "lists": lambda depth: "[" * depth + "]" * depth,
    "tables": lambda depth: '{"a":' * depth + "1" + "}" * depth,
    "broken off": lambda depth: "[" * depth + "?",
}


@pytest.mark.parametrize("shape", NESTED)
@pytest.mark.parametrize("kind", READERS)
def test_brackets_nested_thousands_deep_are_one_message_with_a_place(
    kind: str, shape: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    for depth in (65, 990, 5_000, 200_000):
        path.write_text(("x = " if kind == "TOML" else "") + NESTED[shape](depth))
        with pytest.raises(RatrainError) as error:
            READERS[kind](path)
        assert error.value.place.startswith(str(path))
        assert error.value.fix


def test_so_is_the_header_of_a_file_of_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = NESTED["tables"](5_000).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(RatrainError, match="nested more than 64 deep"):
        tensor_header(path)
