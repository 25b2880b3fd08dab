"""`ratrain --version`: this build, and what it lacks."""

from __future__ import annotations

import platform
from importlib import metadata

from ratrain import __version__


def about() -> str:
    """The version, Python's and torch's, and whether the C parts are compiled."""
    from ratrain.compiled import HEART, SLOWER, library

    missing = [name for room, name in HEART if library(room, name) is None]
    parts = "C parts compiled" if not missing else f"not compiled: {', '.join(missing)}; {SLOWER}"
    return "\n".join(
        (
            f"ratrain {__version__}",
            f"Python {platform.python_version()}, {_torch()}",
            parts,
        )
    )


def _torch() -> str:
    try:
        return f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        return 'no torch (to train: pip install "ratrain[train]")'
