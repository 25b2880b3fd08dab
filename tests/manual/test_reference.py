"""The reference pages are those of this commit's source."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pages import DOCS
from reference import PAGES

REFERENCE = DOCS / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_written_from_the_source_is_current(name: str) -> None:
    # In a process of its own: a command keeps the help option of whoever called it first.
    written = f"import sys; from reference import PAGES; sys.stdout.write(PAGES[{name!r}]())"
    environment = {"PYTHONPATH": str(DOCS.parent / "scripts")}
    printed = subprocess.run(
        [sys.executable, "-c", written], env=environment, capture_output=True, text=True, check=True
    )
    assert (REFERENCE / name).read_text() == printed.stdout, "run scripts/reference.py"
