"""Torch's distributed checkpoints: written so that others read them, and read back."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_made import CONFIG, KINDS, UNITS, contents, holds, save

from ratrain.checkpoint.dcp import KEY, read_dcp, write_dcp
from ratrain.checkpoint.listing import listed
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.errors import CheckpointError

dcp: Any = import_module("torch.distributed.checkpoint")


@pytest.fixture(autouse=True)
def _no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's writer asks a device that another test has registered for streams."""
    if hasattr(torch, "deferred"):
        monkeypatch.setattr("torch.deferred.is_available", lambda: False)


@pytest.mark.slow
def test_others_read_every_value_of_a_checkpoint_and_it_comes_back_bit_by_bit(
    tmp_path: Path,
) -> None:
    written = open_checkpoint(save(tmp_path / "run", 7))
    assert write_dcp(written, tmp_path / "dcp") == len(UNITS) * len(KINDS)
    loaded = {f"{unit}/{kind}": torch.empty(size) for unit, size in UNITS.items() for kind in KINDS}
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(str(tmp_path / "dcp")), no_dist=True)
    for unit, size in UNITS.items():
        for kind in KINDS:
            expected = torch.from_numpy(contents(7, unit, kind, size)).view(torch.int32)
            assert torch.equal(loaded[f"{unit}/{kind}"].view(torch.int32), expected)
    back = open_checkpoint(read_dcp(tmp_path / "dcp", tmp_path / "other"))
    assert holds(back) and back.manifest.meta == written.manifest.meta
    with pytest.raises(CheckpointError, match="exists already"):
        write_dcp(written, tmp_path / "dcp")


@pytest.mark.slow
def test_a_folder_that_is_not_of_such_a_model_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    with pytest.raises(CheckpointError, match="is not a folder of torch"):
        read_dcp(tmp_path, tmp_path / "run")
    body = {"step": 1, "model": "m", "config_hash": CONFIG, "units": {"e": 4}, "state": {}}
    said = json.dumps(body).encode()
    for state, problem in (
        ({"e/weights": torch.zeros(4)}, "no entry 'ratrain'"),
        ({"e/weights": torch.zeros(2, 2), KEY: torch.zeros(0)}, "has shape"),
    ):
        if KEY in state:
            state[KEY] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
        folder = tmp_path / problem
        writer = dcp.FileSystemWriter(str(folder))
        dcp.save(state, storage_writer=writer, no_dist=True)
        with pytest.raises(CheckpointError, match=problem):
            read_dcp(folder, tmp_path / "run")
    assert listed(tmp_path / "run") == ()
