"""Of each test marked `matrix`, a share of its cases, drawn by the commit: what `.ci/run` runs.

A matrix says one thing of many combinations (schedules, layouts, dtypes). `--share 6` runs a sixth
of the cases of each, rounded up, so every test runs in every draw. Which ones, the commit's hash
decides: the same commit draws the same cases on every machine, the next one draws anew. Chance
leaves gaps: in ten landings a case of a large matrix is drawn at least once with probability
1 - (5/6)^10 = 84 %, in twenty with 97 %; one of a matrix of four in ten with 94 %; the mean of
all cases is 90 %. `make soak` runs all. Without `--share`, and without a commit, all cases run.
"""

from __future__ import annotations

import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOT_DRAWN = "cases_not_drawn"
LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--share` and `--draw`."""
    group = parser.getgroup("matrices")
    group.addoption("--share", type=int, default=1, help="run one in N cases of each matrix")
    group.addoption("--draw", help="the commit whose cases are drawn (default: this one)")


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
    return f"matrices: one in {share} cases of each, drawn by {draw[:12]}"


def drawn(cases: list[str], share: int, draw: str) -> set[str]:
    """One in `share` of a matrix's cases, rounded up: those that hash lowest with the commit."""
    by_lot = sorted(cases, key=lambda case: sha256(f"{draw} {case}".encode()).digest())
    return set(by_lot[: -(-len(cases) // share)])


@pytest.hookimpl(trylast=True)  # of those that `-m` leaves
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the cases out that were not drawn."""
    share: int = config.option.share
    draw: str | None = config.option.draw
    if share == 1 or draw is None:
        return
    matrices: dict[str, list[str]] = {}
    for item in items:
        if item.get_closest_marker("matrix"):
            matrices.setdefault(item.nodeid.partition("[")[0], []).append(item.nodeid)
    kept = {case for cases in matrices.values() for case in drawn(cases, share, draw)}
    left_out = [i for i in items if i.get_closest_marker("matrix") and i.nodeid not in kept]
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
            f"{left_out:,} cases of matrices were not drawn; `pytest` without --share runs them"
        )
