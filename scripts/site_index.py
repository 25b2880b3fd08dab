"""What the site's builder calls when it is done: writes llms.txt, the manual's index for language
models (llmstxt.org), and each page's Markdown beside its HTML.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, cast

_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def on_post_build(config: dict[str, Any]) -> None:
    """Called by mkdocs with its configuration."""
    docs, site = Path(config["docs_dir"]), Path(config["site_dir"])
    for page in docs.rglob("*.md"):
        shutil.copyfile(page, site / page.relative_to(docs))
    (site / "llms.txt").write_text(
        index(config["site_name"], config["site_description"], config["nav"], docs)
    )


def index(name: str, description: str, nav: list[Any], docs: Path) -> str:
    """The text of llms.txt: a heading for each part of the manual, a line for each page."""
    lines = [f"# {name}", "", f"> {description}", ""]
    for entry in nav:
        if isinstance(entry, str):
            lines += [_entry(docs, entry), ""]
            continue
        for title, pages in cast("dict[str, list[str]]", entry).items():
            lines += [f"## {title}", "", *(_entry(docs, page) for page in pages), ""]
    return "\n".join(lines)


def _entry(docs: Path, page: str) -> str:
    """ "- [title](page): the first sentence of its text"."""
    title, *parts = (docs / page).read_text().split("\n\n")
    first = next((part for part in parts if part[:1].isalpha() or part[:1] == "`" != part[1:2]), "")
    sentence = re.split(r"\.(?:\s|$)", _LINK.sub(r"\1", first))[0]
    return f"- [{title.removeprefix('# ').strip()}]({page}): {' '.join(sentence.split())}"
