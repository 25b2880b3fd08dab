"""About four megabytes of real text that every machine with Python has: Python's own.

First the reference manual's chapters as `help()` shows them (module pydoc_data: English prose),
then the sources of the standard library, whose documentation strings are prose too, in the order
of their names. Tests, tables and what a distribution may leave out are skipped. The same Python
gives the same bytes.
"""

from __future__ import annotations

import json
import os
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ratrain.errors import SpecError

LIMIT_BYTES = 4_000_000
SKIPPED = frozenset(
    (
        *("test", "tests", "idle_test", "idlelib", "lib2to3", "tkinter", "turtledemo"),
        *("turtle.py", "distutils", "ensurepip", "encodings", "pydoc_data", "site-packages"),
        *("dist-packages", "__pycache__", "__phello__", "lib-dynload"),
    )
)
NOTE = """\
{name} holds text of Python {version}: chapters of its reference manual and sources of
its standard library, copied unchanged, each named in its line's "source".

Copyright (c) 2001 Python Software Foundation; All Rights Reserved. Some sources carry
further notices of their own. Licensed under the PSF License Agreement,
https://docs.python.org/3/license.html (in Python itself: `license()`).
"""


@dataclass(frozen=True)
class SampleText:
    """What was written."""

    file: Path
    note: Path  # the licence
    documents: int
    size_bytes: int


def write_sample_text(file: Path) -> SampleText:
    """Write the text as JSON lines, and its licence note beside it; complete or not at all."""
    if file.suffix != ".jsonl":
        raise SpecError(
            "the sample text is JSON lines", place=str(file), fix=f"name it {file.stem}.jsonl"
        )
    lines = list(sample_lines())
    if not lines:
        raise SpecError(
            "this Python has no sources of its standard library",
            place=sysconfig.get_path("stdlib"),
            fix="install them, or give your own text in [data]",
        )
    content = b"".join(lines)
    note = file.with_name(f"{file.name}.LICENCE")
    _write_once(note, NOTE.format(name=file.name, version=platform.python_version()).encode())
    _write_once(file, content)
    return SampleText(file, note, len(lines), len(content))


def sample_lines() -> Iterator[bytes]:
    """JSON lines of {"source", "text"}, LIMIT_BYTES at most in all."""
    size_bytes = 0
    for source, text in _texts():
        table = {"source": source, "text": text}
        line = json.dumps(table, ensure_ascii=False).encode() + b"\n"
        size_bytes += len(line)
        if size_bytes > LIMIT_BYTES:
            return
        yield line


def _texts() -> Iterator[tuple[str, str]]:
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError:  # a distribution may leave it out
        topics = {}
    yield from ((f"reference/{name}", topics[name]) for name in sorted(topics))
    root = Path(sysconfig.get_path("stdlib"))
    paths = {path.relative_to(root): path for path in root.rglob("*.py")}
    for name in sorted(paths, key=lambda name: name.as_posix()):
        generated = name.parts[0].startswith(("_sysconfigdata", "config-"))
        if generated or not SKIPPED.isdisjoint(name.parts):
            continue
        try:
            text = paths[name].read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if text.strip():
            yield f"library/{name.as_posix()}", text


def _write_once(path: Path, content: bytes) -> None:
    """Write a file in one step; one that is there with other content is not touched."""
    partial = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        if path.exists():
            if path.read_bytes() == content:
                return
            raise SpecError("the file exists", place=str(path), fix="delete it or choose another")
        try:
            partial.write_bytes(content)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise SpecError(
            f"cannot be written: {error.strerror}", place=str(path), fix="choose another file"
        ) from error
