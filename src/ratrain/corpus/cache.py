"""Where what is read of a job's data is kept."""

from __future__ import annotations

import os
from pathlib import Path

from ratrain.errors import SpecError


def default_cache() -> Path:
    """`ratrain/corpus` in the user's cache folder (XDG Base Directory Specification)."""
    cache_folder = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(cache_folder) if Path(cache_folder).is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise SpecError(
            "the user has no home folder to cache tokens in",
            place="XDG_CACHE_HOME",
            fix="set it to a folder",
        ) from error
    return root / "ratrain" / "corpus"
