"""The reference pages are those of this commit's source."""

from __future__ import annotations

import re

import pytest
from pages import DOCS
from reference import PAGES

from ratrain import errors

REFERENCE = DOCS / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_written_from_the_source_is_current(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name](), "run scripts/reference.py"


def test_every_exit_status_of_an_error_is_in_the_table() -> None:
    listed = {int(row) for row in re.findall(r"^\| (\d+) \|", _page("exit-codes.md"), re.MULTILINE)}
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    raised = {each.exit_code for each in kinds if issubclass(each, errors.RatrainError)}
    assert raised == {2, 3, 4, 5, 6, 7, 8, 9}
    assert listed == raised | {0, 1, 130}


def _page(name: str) -> str:
    return (REFERENCE / name).read_text()
