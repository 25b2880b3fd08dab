"""A rank's failure that no file can hold stands in its log, as one line that the launcher shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratrain.errors import CheckpointError
from ratrain.runtime.failures import tell
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
