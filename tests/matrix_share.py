"""A share of the slow tests, drawn by the commit: what `.ci/run` runs of them.

A test marked `matrix` says one thing of many combinations (schedules, layouts, dtypes):
`--share 10` runs a tenth of its cases, of three cases one in three draws of ten. Of all other
slow tests' cases together it runs a fifth; quick tests all run. Which cases, the commit's hash
decides: the same commit draws the same on every machine, the next one draws anew. Chance leaves
gaps: in ten landings a case of a matrix is drawn at least once with probability
1 - (9/10)^10 = 65 %, in twenty with 88 %, and one of its three or more cases in ten with 97 %;
another slow test in ten with 89 %, in twenty with 98.8 %. `make soak` runs all matrices,
`make test-all` everything. Without `--share`, and without
a commit, all cases run.
"""

from __future__ import annotations

import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOT_DRAWN = "cases_not_drawn"
ONE_IN = 5
"""Of the slow tests that are no matrices, one in so many runs."""
LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--share` and `--draw`."""
    group = parser.getgroup("matrices")
    group.addoption("--share", type=int, default=1, help="run one in N cases of each matrix")
    group.addoption("--draw", help="the commit whose cases are drawn (default: this one)")
    group.addoption("--backwards", action="store_true", help="the last test first")


def pytest_configure(config: pytest.Config) -> None:
    """Settle which commit draws, once for all workers."""
    config.addinivalue_line(
        "markers", "matrix: one sentence about many cases; `.ci/run` runs a share of them"
    )
    share: int = config.option.share
    if share < 1:
        raise pytest.UsageError(f"--share {share}: one in how many, a whole number from 1 up")
    if share > 1 and not config.option.draw:
        config.option.draw = this_commit()


def this_commit() -> str | None:
    """The commit that is checked out; none outside a repository."""
    said = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or None


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which cases run."""
    share: int = config.option.share
    draw: str | None = config.option.draw
    if share == 1:
        return None
    if draw is None:
        return "matrices: all cases, since no commit is here that could draw a share of them"
    return (
        f"one in {share} cases of each matrix, one in {min(share, ONE_IN)} of the other slow "
        f"tests, drawn by {draw[:12]}"
    )


def drawn(cases: list[str], share: int, draw: str) -> set[str]:
    """One in `share` of some cases: those that hash lowest with the commit, which also decides
    whether their number is rounded up or down."""
    by_lot = sorted(cases, key=lambda case: _lot(f"{draw} {case}"))
    return set(by_lot[: int(len(cases) / share + _lot(f"{draw} of {min(cases)}"))])


def _lot(words: str) -> float:
    """From 0 to 1."""
    return int.from_bytes(sha256(words.encode()).digest()[:6]) / (1 << 48)


def lot_of(item: pytest.Item, share: int) -> tuple[str, int]:
    """The cases that a case is drawn among, and one in how many of them is to run."""
    if item.get_closest_marker("matrix"):
        return item.nodeid.partition("[")[0], share
    return ("other slow tests", min(share, ONE_IN)) if item.get_closest_marker("slow") else ("", 1)


@pytest.hookimpl(trylast=True)  # of those that `-m` leaves
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the cases out that were not drawn. Backwards, a test that needs what an earlier one
    left fails, as it would where a draw took it alone."""
    if config.option.backwards:
        items.reverse()
    share: int = config.option.share
    draw: str | None = config.option.draw
    if share == 1 or draw is None:
        return
    lots: dict[tuple[str, int], list[str]] = {}
    for item in items:
        lots.setdefault(lot_of(item, share), []).append(item.nodeid)
    kept = {case for (_, one_in), cases in lots.items() for case in drawn(cases, one_in, draw)}
    left_out = [item for item in items if item.nodeid not in kept]
    config.stash[LEFT_OUT] = len(left_out)
    gone = {id(item) for item in left_out}
    items[:] = [item for item in items if id(item) not in gone]
    config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells the process that prints how many cases were not drawn."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[NOT_DRAWN] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist counted: all of them count the same."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get(NOT_DRAWN, 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how many cases were left out, and how to run them."""
    if left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(
            f"{left_out:,} cases were not drawn; `pytest` without --share runs them"
        )
