"""Checkpoints as `torch.distributed.checkpoint` (DCP) has them, for other frameworks, and back.

Each unit's buffer of each kind is one flat fp32 tensor, "7/moment1"; "ratrain" is what the manifest
says of the step, JSON in bytes. DCP's own list of tensors is a pickle: whoever reads one runs what
is in it. Torch is imported when it is asked for.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratrain.checkpoint.entries import Entry
from ratrain.checkpoint.folder import begin, commit, rank_path
from ratrain.checkpoint.manifest import Damage, Meta, meta_of
from ratrain.checkpoint.reader import Checkpoint
from ratrain.checkpoint.shard_writer import ShardWriter
from ratrain.errors import CheckpointError, SpecError
from ratrain.readers.json import as_table, parse_json

KEY = "ratrain"
"""The entry of a DCP folder that says which step of which model it is."""


def write_dcp(checkpoint: Checkpoint, folder: Path) -> int:
    """Writes a checkpoint to a new folder; the number of its tensors. All of it is in memory."""
    torch, dcp = _torch()
    if folder.exists():
        raise CheckpointError("exists already", place=str(folder), fix="name a new folder")
    meta = checkpoint.manifest.meta
    said = {**vars(meta), "units": dict(meta.units), "state": dict(meta.state)}
    state = {KEY: torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)}
    for unit, kind in checkpoint.manifest.ranges:
        values = checkpoint.read_range(unit, kind, 0, meta.units[unit])
        state[f"{unit}/{kind}"] = torch.from_numpy(values)
    writer = dcp.FileSystemWriter(str(folder), single_file_per_rank=True)
    dcp.save(state, storage_writer=writer, no_dist=True)
    return len(state) - 1


def read_dcp(folder: Path, run: Path) -> Path:
    """Puts what a DCP folder holds into a run as a checkpoint of its step, which it returns."""
    torch, dcp = _torch()
    reader = dcp.FileSystemReader(str(folder))
    try:
        known: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    except Exception as error:
        raise CheckpointError(
            f"is not a folder of torch.distributed.checkpoint: {error}",
            place=str(folder),
            fix="give one that `ratrain checkpoints --to-dcp` or dcp.save wrote",
        ) from error
    if KEY not in known:
        raise CheckpointError(
            f"has no entry {KEY!r}, which says what it is of",
            place=str(folder),
            fix="change the values in a folder that `ratrain checkpoints --to-dcp` wrote",
        )
    said = {KEY: torch.empty(tuple(known[KEY].size), dtype=torch.uint8)}
    dcp.load(said, storage_reader=reader, no_dist=True)
    meta = _meta(said[KEY].numpy().tobytes(), folder)
    names = [name for name in known if name != KEY]
    entries = {name: _entry(name, known[name], meta, folder) for name in names}
    partial = begin(run, meta.step)
    with ShardWriter(rank_path(partial, 0), list(entries.values())) as writer:
        for name, entry in entries.items():
            state = {name: torch.empty(entry.size)}
            dcp.load(state, storage_reader=reader, no_dist=True)
            writer.write(entry.name, state[name].numpy())
        record = writer.finish()
    return commit(partial, [record], meta)


def _meta(text: bytes, folder: Path) -> Meta:
    try:
        return meta_of(as_table(*parse_json(text, KEY))[0])
    except (Damage, SpecError) as error:
        raise CheckpointError(
            f"its entry {KEY!r} cannot be read: {error}",
            place=str(folder),
            fix="change the values in a folder that `ratrain checkpoints --to-dcp` wrote",
        ) from error


def _entry(name: str, known: Any, meta: Meta, folder: Path) -> Entry:
    unit, _, kind = name.rpartition("/")
    size = meta.units.get(unit)
    if size is None or tuple(known.size) != (size,):
        raise CheckpointError(
            f"{name} has shape {list(known.size)}; the model's unit has {size or 'no'} elements",
            place=str(folder),
            fix="keep names and shapes as `ratrain checkpoints --to-dcp` wrote them",
        )
    return Entry(unit, kind, 0, size, size)


def _torch() -> tuple[Any, Any]:
    import torch
    import torch.distributed.checkpoint as dcp

    # It warns that there is one process, which `no_dist` asks for.
    warnings.filterwarnings("ignore", "torch.distributed is disabled", module="torch")
    return torch, dcp
