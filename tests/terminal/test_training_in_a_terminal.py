"""A run that is watched in a terminal, and stopped there. Ctrl-C reaches the ranks as well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_runs import rank_processes, write_job
from screens import BAR, Terminal, ratrain

pytestmark = pytest.mark.slow


def step_shown(terminal: Terminal) -> int:
    """The step that the table shows."""
    table = re.search(r"(\d+)/9000 +\d", terminal.text)
    return int(table[1]) if table else 0


def test_ctrl_c_stops_a_run_after_its_step_and_a_second_one_at_once(tmp_path: Path) -> None:
    write_job(tmp_path, steps=9000)
    terminal = Terminal(ratrain("train", "job.toml"), columns=80, folder=tmp_path)
    # a frame may arrive in two pieces: the step's row, then the bars
    terminal.follow(lambda t: step_shown(t) >= 3 and len(t.bars()) == 2, limit_s=120)
    assert terminal.most_bars == 2  # one per rank
    terminal.type("\x03")
    assert terminal.end(limit_s=60) == 75, terminal.text
    assert "--resume" in terminal.text and "Traceback" not in terminal.text
    assert re.search(r"step \d+/9000 +loss", terminal.text)
    assert (terminal.wrapped, BAR & set(terminal.text)) == ([], set())

    again = Terminal(ratrain("train", "job.toml", "--resume"), columns=120, folder=tmp_path)
    begun = step_shown(terminal)
    again.follow(lambda t: step_shown(t) > begun, limit_s=120)
    again.type("\x03")
    again.follow(lambda t: "Ctrl-C again" in t.text, limit_s=10)
    again.type("\x03")
    assert again.end(limit_s=60) in (75, 130), again.text
    assert "Traceback" not in again.text
    assert (again.wrapped, BAR & set(again.text)) == ([], set())
    assert rank_processes(tmp_path) == []


@pytest.mark.parametrize("columns", [40, 20])
def test_a_run_fits_a_narrow_terminal(tmp_path: Path, columns: int) -> None:
    write_job(tmp_path, steps=4)
    terminal = Terminal(
        ratrain("train", "job.toml", "--no-calibrate"), columns=columns, folder=tmp_path
    )
    assert terminal.end() == 0
    assert "Traceback" not in terminal.text
    assert not BAR & set(terminal.text)
