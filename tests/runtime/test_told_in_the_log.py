"""What a rank ends with: in the run's folder once, or, where no file can hold it, in its log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ratrain.errors import CheckpointError, PeerDown
from ratrain.runtime.failures import read_failure, tell
from ratrain.runtime.rank.context import RankProcess
from ratrain.runtime.run_folder import RunFolder


def test_a_failure_that_cannot_be_written_is_one_line_that_begins_with_what_was_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ranks").write_text("no folder")
    error = CheckpointError("the disk takes no more files", place="/disk/x", fix="remove files")
    assert tell(RunFolder(tmp_path), 3, error) == 7
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("/disk/x: the disk takes no more files (")
    assert "failure-00003.json cannot be written: " in line


def test_what_followed_from_a_rank_s_own_error_does_not_take_its_place(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    of_rank: Any = SimpleNamespace(rank=0, settled=True)
    process = RankProcess(RunFolder(tmp_path), of_rank, of_rank, cast(Any, None))
    path = RunFolder(tmp_path).rank_file(0, "failure")
    lost, full = PeerDown("rank 0 lost its connection to rank 1"), CheckpointError("it is full")
    for error, told in ((lost, lost), (full, full), (lost, full)):
        process.tell(error)
        assert read_failure(path).what == told.what
