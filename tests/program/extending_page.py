"""The files that docs/how-to/extending.md shows."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "extending.md"
MODULES = ("waves", "offload_most", "weight_average", "halving", "turned", "adamax")
"""What the page names in RATRAIN_EXTENSIONS; the family comes with the kind of op."""


def files_of_page() -> dict[str, str]:
    """Each block of code whose first line is a comment with the name of a file."""
    blocks = re.findall(r"```\w+\n(# (\S+\.\w+)\n.*?)```", PAGE.read_text(), flags=re.S)
    return {name: text for text, name in blocks}


def write_files(folder: Path) -> Path:
    """The page's files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files_of_page().items():
        (folder / name).write_text(text)
    return folder
