"""Models of the Hugging Face hub by their ids, where a download has put them on this machine.

Nothing is fetched, and no package is needed: the cache is folders, and `refs/main` names the latest
version (huggingface.co/docs/huggingface_hub/guides/manage-cache).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ratrain.errors import SpecError
from ratrain.readers.files import is_folder, read_text

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
CONFIG = "config.json"


def model_folder(name: str) -> Path | None:
    """The folder that a model's name means: itself, that of a config.json, or that of a hub's id.
    None where it can only be a preset."""
    path = Path(name).expanduser()
    if is_folder(path):
        return path
    if path.name == CONFIG:
        return path.parent
    if _ID.fullmatch(name):
        return _downloaded(name)
    return path if "/" in name else None


def _downloaded(name: str) -> Path:
    """The folder of a hub id's latest version here."""
    kept = _cache() / f"models--{name.replace('/', '--')}"
    reference, snapshots = kept / "refs" / "main", kept / "snapshots"
    folder = snapshots / read_text(reference).strip() if reference.is_file() else None
    if folder is None and is_folder(snapshots) and len(others := list(snapshots.iterdir())) == 1:
        folder = others[0]
    if folder is None:
        what = f"neither a folder nor a model that was downloaded to {_cache()}"
        raise SpecError(what, place=name, fix=_fix(name))
    if not (folder / CONFIG).exists():
        raise SpecError(f"its download is not complete: {folder}", place=name, fix=_fix(name))
    return folder


def _fix(name: str) -> str:
    return f"hf download {name}, where there is a network; or give a folder that holds a {CONFIG}"


def _cache() -> Path:
    """Where the hub's own tools keep models, as they find it."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    general = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "huggingface"
    return Path(os.environ.get("HF_HOME", general)).expanduser() / "hub"
