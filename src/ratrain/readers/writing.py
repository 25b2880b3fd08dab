"""Files that are written whole, or not at all."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

from ratrain.readers.files import check_name, check_regular, unwritable
from ratrain.readers.limits import NAME_BYTES

_PARTIAL = ".partial"
_STDOUT, _STDERR = 1, 2


def write_whole(path: Path, text: str) -> None:
    """Writes a file under another name and renames it, so that no half file is ever seen. A link
    stays, and what it leads to is written. What is no file is written in place: a rename would put
    a file there."""
    check_name(path)
    try:
        stream = _stream(path)
        if stream is not None:
            _print(stream, text)
        elif _is_special(path):
            _write_in_place(path, text)
        else:
            _replace(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise unwritable(path, error) from error


def _stream(path: Path) -> int | None:
    """/dev/stdout and the like: what they lead to may be a file that a shell has opened, of which a
    rename would put another one in the place."""
    if not path.is_symlink():
        return None
    for number in (_STDOUT, _STDERR):
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(number)):
                return number
    return None


def _print(stream: int, text: str) -> None:
    (sys.stdout if stream == _STDOUT else sys.stderr).flush()
    with os.fdopen(os.dup(stream), "w", encoding="utf-8") as file:
        file.write(text)


def _is_special(path: Path) -> bool:
    """Whether there is something of that name that is no regular file; a folder is an error."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    if stat.S_ISDIR(mode):
        check_regular(path, mode, "cannot be written")
    return not stat.S_ISREG(mode)


def _write_in_place(path: Path, text: str) -> None:
    # Without O_NONBLOCK, opening a pipe without a reader blocks forever.
    handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


def _replace(path: Path, text: str) -> None:
    short = path.name.encode()[: NAME_BYTES - len(_PARTIAL)].decode(errors="ignore")
    partial = path.parent / f"{short}{_PARTIAL}"
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
