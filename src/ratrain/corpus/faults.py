"""What can be wrong with a document, each as one error with its file and line."""

from __future__ import annotations

import difflib
from pathlib import Path

from ratrain.errors import SpecError

_USUAL = ("text", "content")
"""What the text of a document is mostly called."""


def missing_key(key: str, keys: list[str], place: str, setting: str = "text_key") -> SpecError:
    """The error for a line or table without the text key; names the nearest one that is there, or
    where conversations lie there, how they are read."""
    usual = [name for name in _USUAL if name in keys]
    close = difflib.get_close_matches(key, keys, n=1) or usual
    if not close and "messages" in keys:
        setting, close = "messages_key", ["messages"]
    fix = f'set {setting} = "{(close or keys)[0]}"' if keys else "leave it out"
    names = ", ".join(keys[:8]) or "nothing"
    return SpecError(f"no key {key!r} (its keys: {names})", place=place, fix=fix)


def not_text(key: str, value: object, place: str) -> SpecError:
    """The error for a key that holds something else than text."""
    kind = "null" if value is None else type(value).__name__
    return SpecError(f"{key!r} is {kind}, not text", place=place, fix="leave this one out")


def not_utf8(path: Path, line: int, error: UnicodeDecodeError) -> SpecError:
    """The error for the first byte that is no UTF-8."""
    byte = error.object[error.start]
    return SpecError(
        f"not UTF-8: byte 0x{byte:02x}",
        place=f"{path}:{line}",
        fix="convert it, as with: iconv -f latin1 -t utf-8",
    )
