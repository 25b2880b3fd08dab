"""The files that docs/how-to/extending.md is about."""

from __future__ import annotations

import shutil
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "extending"
MODULES = ("waves", "offload_most", "weight_average", "halving", "turned", "adamax", "coarse")
"""What the page names in RATRAIN_EXTENSIONS; the family comes with the kind of op."""


def files_of_page() -> dict[str, str]:
    return {path.name: path.read_text() for path in EXAMPLES.iterdir() if path.is_file()}


def write_files(folder: Path) -> Path:
    """The page's files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in files_of_page():
        shutil.copy(EXAMPLES / name, folder / name)
    return folder
