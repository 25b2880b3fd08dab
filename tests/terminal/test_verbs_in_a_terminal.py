"""Every verb of the command tree in a terminal of 80 and of 120 columns, and with --json.

Verbs that take long run in the narrower one alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from screens import ROWS, Terminal, ratrain
from verbs import USES, Use, leaves, prepare

from ratrain.lab.needs import missing

WIDTHS = (80, 120)


def marks(use: Use) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * use.slow + [pytest.mark.root] * use.root


EACH = [pytest.param(verb, marks=marks(use), id=verb) for verb, use in USES.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("verbs"))


@pytest.fixture(scope="module")
def seen() -> dict[str, list[Terminal]]:
    """Terminals in which a verb has ended, each verb once: some need what others leave."""
    return {}


def run(verb: str, folder: Path, seen: dict[str, list[Terminal]]) -> list[Terminal]:
    """The verb's terminals: of its widths, then one whose stdout is a file, with --json."""
    use = USES[verb]
    if use.root and (reasons := missing()):
        pytest.skip(f"no lab on this machine: {'; '.join(reasons)}")
    if verb in ("timeline", "compare", "sample", "export", "evaluate") or verb.startswith("launch"):
        run("train", folder, seen)
    if verb not in seen:
        widths = WIDTHS[:1] if use.slow else WIDTHS
        seen[verb] = []
        for columns in (*widths, 0):
            stdout = None if columns else folder / f"{verb}.json"
            columns = columns or WIDTHS[0]
            seen[verb].append(start(use, folder, columns, stdout))
            if use.slow:
                seen[verb][-1].end()  # before the next begins: it takes all processors
        for terminal in seen[verb]:
            terminal.end()
    return seen[verb]


def start(use: Use, folder: Path, columns: int, stdout: Path | None) -> Terminal:
    words = use.arguments.format(out=f"out-{columns}-{bool(stdout)}").split()
    if stdout:
        end_of_options = words.index("--") if "--" in words else len(words)
        words.insert(end_of_options, "--json")
    return Terminal(ratrain(*words), columns=columns, folder=folder, stdout=stdout)


def too_wide(terminal: Terminal) -> list[str]:
    """Lines that had to be wrapped, but for a path alone on its line: it stays whole."""
    return [line for line in terminal.wrapped if not line.lstrip().startswith("/")]


def test_every_verb_has_a_test_in_a_terminal() -> None:
    run_ranks = {"rank", "launch ray"}  # what they show is what ranks print: tests/engines
    assert {path for path, _ in leaves()} - run_ranks == USES.keys()


@pytest.mark.parametrize("verb", EACH)
def test_the_screen_holds_the_verdict_and_nothing_that_does_not_belong_there(
    verb: str, folder: Path, seen: dict[str, list[Terminal]]
) -> None:
    for terminal in run(verb, folder, seen)[:-1]:
        shown = terminal.text
        assert terminal.status == 0, shown
        assert "Traceback" not in shown
        assert USES[verb].document or too_wide(terminal) == []
        assert terminal.bars() == [], "remains of a bar"
        assert terminal.most_bars <= USES[verb].bars
        assert re.search(USES[verb].verdict, "\n".join(terminal.lines[-ROWS:])), shown


@pytest.mark.parametrize("verb", EACH)
def test_json_is_one_document_on_stdout_while_the_terminal_is_watched(
    verb: str, folder: Path, seen: dict[str, list[Terminal]]
) -> None:
    terminal = run(verb, folder, seen)[-1]
    assert terminal.status == 0, terminal.text
    assert json.loads((folder / f"{verb}.json").read_text()) is not None
    assert "Traceback" not in terminal.text
    assert (too_wide(terminal), terminal.bars()) == ([], [])
