"""The pages of the manual, their headings and their links."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """README.md and everything under docs/."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """What `#...` may name on a page: each heading as GitHub and mkdocs spell it."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text())):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        found.add(re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-"))
    return found


def links(page: Path) -> list[tuple[str, str]]:
    """The relative links of a page: path from the page's folder, and what follows `#`."""
    targets = _LINK.findall(_FENCE.sub("", page.read_text()))
    return [
        (path, anchor)
        for path, _, anchor in (target.partition("#") for target in targets)
        if not re.match(r"[a-z]+:", path)
    ]
