"""Of tests with many cases a share, drawn by the commit: what `.ci/run` runs of the slow ones.

A test marked `matrix` says one thing of many combinations (schedules, layouts, dtypes):
`--share 10` runs a tenth of its cases. Of another slow test with at least `MANY` cases (pages of
the manual, verbs in a terminal) it runs a third. Shares are rounded up, so every test runs in every
draw. Which cases, the commit's hash decides: the same commit draws the same on every machine, the
next one draws anew. Chance leaves gaps: in ten landings a case of a large matrix is drawn at least
once with probability 1 - (9/10)^10 = 65 %, in twenty with 88 %; one of a third in ten with 98 %.
`make soak` runs all matrices. Without `--share`, and without a commit, all cases run.
"""

from __future__ import annotations

import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOT_DRAWN = "cases_not_drawn"
MANY, ONE_IN = 3, 3
"""Of a slow test that is no matrix and has so many cases, one in so many runs."""
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
    return (
        f"one in {share} cases of each matrix, one in {min(share, ONE_IN)} of other slow tests "
        f"with {MANY} or more, drawn by {draw[:12]}"
    )


def drawn(cases: list[str], share: int, draw: str) -> set[str]:
    """One in `share` of a matrix's cases, rounded up: those that hash lowest with the commit."""
    by_lot = sorted(cases, key=lambda case: sha256(f"{draw} {case}".encode()).digest())
    return set(by_lot[: -(-len(cases) // share)])


def share_of(cases: list[pytest.Item], share: int) -> int:
    """One in how many of a test's cases is to run."""
    if cases[0].get_closest_marker("matrix"):
        return share
    is_slow = all(case.get_closest_marker("slow") for case in cases)
    return min(share, ONE_IN) if is_slow and len(cases) >= MANY else 1


@pytest.hookimpl(trylast=True)  # of those that `-m` leaves
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the cases out that were not drawn."""
    share: int = config.option.share
    draw: str | None = config.option.draw
    if share == 1 or draw is None:
        return
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {
        case
        for cases in tests.values()
        for case in drawn([item.nodeid for item in cases], share_of(cases, share), draw)
    }
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
