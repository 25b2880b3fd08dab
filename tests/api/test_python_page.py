"""docs/how-to/python.md: its cells, as a reader runs them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "python.md"
CELL = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_cells(text: str) -> dict[str, Any]:
    """The namespace after all cells of a text; a failure names the line of the page."""
    namespace: dict[str, Any] = {"__name__": "notebook"}
    for cell in CELL.finditer(text):
        line = text[: cell.start(1)].count("\n")
        exec(compile("\n" * line + cell[1], str(PAGE), "exec"), namespace)
    return namespace


@pytest.mark.slow
def test_the_cells_that_need_no_processes_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before_training, heading, _ = PAGE.read_text().partition("\n## Train\n")
    assert heading
    cells = run_cells(before_training)
    assert cells["prediction"].fits
    assert "cannot be read" in capsys.readouterr().out


@pytest.mark.slow
def test_all_cells_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cells = run_cells(PAGE.read_text())
    run = cells["run"]
    shown = run._repr_html_()
    assert "svg" in shown and "8 of 8 steps" in shown
    page = (tmp_path / "first.html").read_text()
    assert page == cells["page"].html and "<!doctype html>" in page
