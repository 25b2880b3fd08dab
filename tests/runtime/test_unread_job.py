"""A host that cannot read its job says so to all, under TLS too."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from launched import made
from runs_made import Setting

from ratrain.runtime.run_folder import RunFolder


def ranks_apart(folders: list[RunFolder]) -> list[tuple[int, str]]:
    """Each rank's end, and what it said; each has a folder of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "ratrain.runtime.rank", str(folder.path)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(len(folders)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, folder in enumerate(folders)
    ]
    said = [child.communicate(timeout=100)[0] for child in children]
    return [(child.returncode, words) for child, words in zip(children, said, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("blind", [0, 1])
def test_all_ranks_under_tls_hear_which_of_them_cannot_read_its_job(
    blind: int, tmp_path: Path
) -> None:
    setting = Setting(data=2, train=(("tls", "secret"),))
    folders = [made(tmp_path / "whole", setting)]
    shutil.copytree(folders[0].path, tmp_path / "copy")
    folders.insert(blind, RunFolder(tmp_path / "copy"))
    marker = tmp_path / "copy" / "run.json"
    body = json.loads(marker.read_text())
    assert body["tls"] == "secret"
    marker.write_text(json.dumps({**body, "job_path": str(tmp_path / "gone.toml")}))
    for status, words in ranks_apart(folders):
        assert status and "gone.toml" in words, words
        assert "TLS" not in words
