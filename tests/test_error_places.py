"""Errors of what users write say where: read from the source of every room that users meet."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ratrain.cli.terminal.mistakes import as_error
from ratrain.errors import ProgramError

SOURCE = Path(__file__).parents[1] / "src" / "ratrain"
ROOMS = (
    *("api", "checkpoint", "cli", "convert", "corpus", "describe", "lab", "plan", "profile"),
    *("readers", "report", "reproduce", "runtime", "timeline", "validate"),
)
"""Not program/, whose errors get their place from whoever read the program, nor the parts that are
used alone, whose errors name the call."""
ERRORS = {
    *("SpecError", "Infeasible", "TimelineError", "CheckpointError", "CannotResume"),
    *("SavedElsewhere", "RunFailed", "RunTaken"),
}
MODULES = sorted(path for room in ROOMS for path in (SOURCE / room).rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_an_error_that_a_user_can_meet_names_its_place(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            given = {keyword.arg for keyword in node.keywords}
            named = node.func.id not in ERRORS or given & {"place", None}
            assert named, f"{path.name}:{node.lineno}: no place: {ast.unparse(node)[:120]}"


def test_an_error_without_a_place_gets_the_verb_that_was_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["ratrain", "simulate", "job.toml"])
    assert str(as_error(ProgramError("the program deadlocks"))) == (
        "ratrain simulate: the program deadlocks"
    )
