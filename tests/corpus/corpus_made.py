"""Token stores of made-up ids, and saved datasets."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ratrain.corpus.store import FORMAT, INDEX, TOKENS, Index, TokenStore, open_store, write_index


def made_store(folder: Path, tokens: int) -> TokenStore:
    """A store whose tokens are 0, 1, 2, ... so that a token tells where it came from."""
    folder.mkdir(exist_ok=True)
    content = np.arange(tokens, dtype=np.uint32).tobytes()
    sha256 = hashlib.sha256(content).hexdigest()
    index = Index(FORMAT, "uint32", tokens, 1, tokens, 0, "made", "text", (), sha256)
    (folder / TOKENS).write_bytes(content)
    (folder / INDEX).write_bytes(write_index(index))
    return open_store(folder)


def write_stream(path: Path, table: pa.Table) -> None:
    """An Arrow stream, as Hugging Face's datasets write."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def save_to_disk(folder: Path, shards: list[list[str]], **state: Any) -> None:
    """The layout of Dataset.save_to_disk, checked against datasets 5.2."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{len(shards):05}.arrow" for i in range(len(shards))]
    for name, texts in zip(names, shards, strict=True):
        write_stream(folder / name, pa.table({"text": texts, "n": list(range(len(texts)))}))
    listed = {"_data_files": [{"filename": name} for name in names], **state}
    (folder / "state.json").write_text(json.dumps(listed))
    (folder / "dataset_info.json").write_text("{}")


def write_lines(path: Path, texts: list[str]) -> None:
    """JSON lines."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
