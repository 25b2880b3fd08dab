"""No page, comment or message of the project sends a reader to a page that is not there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from pages import ROOT, anchors, links, pages

ROOMS = ("src", "tests", "benchmarks", "scripts", "examples", "Makefile", ".ci")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{path}#{anchor}: no such heading"


def test_every_page_that_code_names_exists() -> None:
    found = subprocess.run(
        ["git", "grep", "-Ihowe", r"docs/[A-Za-z0-9_./#-]*", "--", *ROOMS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    named = set(re.findall(r"docs/[\w./-]+\.(?:md|svg|png)(?:#[\w-]+)?", found.stdout))
    assert len(named) > 15
    for name in named:
        path, _, anchor = name.partition("#")
        assert (ROOT / path).exists(), f"{name} does not exist"
        assert not anchor or anchor in anchors(ROOT / path), f"{name}: no such heading"
