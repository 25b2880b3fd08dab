"""The reference pages are those of this commit's source."""

from __future__ import annotations

import pytest
from pages import DOCS
from reference import PAGES

REFERENCE = DOCS / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_written_from_the_source_is_current(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name](), "run scripts/reference.py"
