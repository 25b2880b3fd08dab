"""The first hour of six people: what they type, from nothing, in a terminal of 80 columns."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from typed import Command, File, Shell, read_session

from ratrain.lab.needs import missing

HERE = Path(__file__).parent
SESSIONS = sorted(HERE.glob("*.session"))
NEEDS_A_LAB = {path.stem for path in SESSIONS if "ip netns" in path.read_text()}


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_the_first_hour_goes_as_written(path: Path, tmp_path: Path) -> None:
    if path.stem in NEEDS_A_LAB and missing():
        pytest.skip("this machine can make no lab")
    shell = Shell(tmp_path, f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for part in read_session(path):
        if isinstance(part, File):
            shell.save(part)
        else:
            assert_as_written(part, *shell.type(part.line))
    shell.end()


def assert_as_written(command: Command, status: int, lines: list[str]) -> None:
    """Its status, what it shows, and no line that the terminal had to break."""
    text = "\n".join(lines)
    told = f"$ {command.line}\n{text}"
    assert status == command.status, told
    assert "Traceback" not in text, told
    at = 0
    for pattern in command.seen:
        match = re.compile(pattern).search(text, at)
        assert match, f"{pattern!r} is not there:\n{told}"
        at = match.end()
