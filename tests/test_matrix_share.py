"""A share of the slow tests: the same for one commit, every matrix in each, every case soon."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from matrix_share import drawn

CASES = [f"tests/some.py::test_it[{n}]" for n in range(30)]
COMMITS = [f"{n:040x}" for n in range(2000)]
TESTS = """
import pytest

@pytest.mark.matrix
@pytest.mark.parametrize("n", range(20))
def test_many(n):
    assert n >= 0

@pytest.mark.matrix
@pytest.mark.parametrize("n", range(3))
def test_few(n):
    assert n >= 0

@pytest.mark.parametrize("n", range(2))
def test_not_a_matrix(n):
    assert n >= 0

@pytest.mark.slow
@pytest.mark.parametrize("n", range(9))
def test_slow(n):
    assert n >= 0

@pytest.mark.slow
def test_alone():
    pass

@pytest.mark.slow
def test_alone_too():
    pass

@pytest.mark.slow
def test_and_another():
    pass
"""


def pytest_in(folder: Path, *words: str) -> str:
    """What pytest prints that knows our options, and runs the tests of a folder."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "matrix_share", *words, "-c", "pytest.ini", "."],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parent), "PATH": ""},
        capture_output=True,
        text=True,
    ).stdout


def test_a_commit_draws_one_in_so_many_cases_and_another_commit_draws_anew() -> None:
    assert drawn(CASES, 5, COMMITS[0]) == drawn(CASES[::-1], 5, COMMITS[0])
    assert drawn(CASES, 5, COMMITS[0]) != drawn(CASES, 5, COMMITS[1])
    for share, size in ((1, 30), (5, 6), (10, 3), (30, 1)):
        assert len(drawn(CASES, share, COMMITS[0])) == size


def test_of_few_cases_as_many_draws_have_one() -> None:
    for count, share in ((3, 10), (7, 10), (13, 10), (1, 4)):
        sizes = [len(drawn(CASES[:count], share, commit)) for commit in COMMITS]
        assert set(sizes) <= {count // share, count // share + 1}
        assert abs(sum(sizes) / len(sizes) - count / share) < 0.04


def test_a_case_is_left_out_ten_times_in_a_row_as_seldom_as_the_module_says() -> None:
    draws = [drawn(CASES, 10, commit) for commit in COMMITS]
    tens = [set[str]().union(*draws[n : n + 10]) for n in range(0, len(draws), 10)]
    left_out = sum(len(CASES) - len(ten) for ten in tens) / (len(CASES) * len(tens))
    assert abs(left_out - (9 / 10) ** 10) < 0.02
    assert all(len(set[str]().union(*draws[n : n + 100])) == 30 for n in range(0, 1800, 100))


@pytest.mark.slow
def test_pytest_runs_the_share_and_says_how_many_cases_it_left_out(tmp_path: Path) -> None:
    (tmp_path / "test_made.py").write_text(TESTS)
    said = [
        pytest_in(tmp_path, *words) for words in ([], ["--share", "5", "--draw", "abc", "-n", "2"])
    ]
    assert "37 passed" in said[0]
    assert "drawn" not in said[0]
    assert re.search(r"\b9 passed", said[1])
    assert "one in 5 cases of each matrix, one in 5 of the other slow tests" in said[1]
    assert "28 cases were not drawn" in said[1]


LEFT = """
left = []

def test_that_leaves_something():
    left.append(1)

def test_that_needs_it():
    assert left
"""


@pytest.mark.slow
def test_backwards_a_test_fails_that_needs_what_an_earlier_one_left(tmp_path: Path) -> None:
    (tmp_path / "test_made.py").write_text(LEFT)
    forwards, backwards = (pytest_in(tmp_path, *words) for words in ((), ("--backwards",)))
    assert "2 passed" in forwards
    assert "1 failed, 1 passed" in backwards and "FAILED test_made.py::test_that_needs" in backwards
