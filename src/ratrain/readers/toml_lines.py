"""The line of each key of a TOML text (the standard parser does not give it).

The text need not be valid: what is wrong with it is placed with these lines too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ratrain.readers.place import Keys, Twice

_HEADER = re.compile(r"\s*(\[{1,2})([^\[\]]+)\]{1,2}\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(
    r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"))*)\s*="
)
_TOKEN = re.compile(r"\"\"\"|'''|\"(?:\\.|[^\"\\])*\"?|'[^']*'?|#.*|[\[\]{}]")
_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([\w-]+)")


def line_of_keys(text: str) -> dict[Keys, int]:
    """Key path -> line number from 1. Keys inside an inline table have their table's line."""
    lines: dict[Keys, int] = {}
    for keys, number in _keys_and_lines(text):
        lines.setdefault(keys, number)
    return lines


def first_twice(text: str) -> Twice | None:
    """The first key, or table, that appears a second time."""
    lines: dict[Keys, int] = {}
    for keys, number in _keys_and_lines(text):
        if keys in lines:
            return Twice(keys, (lines[keys], number))
        lines[keys] = number
    return None


def _keys_and_lines(text: str) -> Iterator[tuple[Keys, int]]:
    counts: dict[Keys, int] = {}
    table: Keys = ()
    open_quote, depth = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not open_quote and depth == 0:
            if header := _HEADER.match(line):
                names = _split(header[2])
                if names:
                    table = _table(header[1] == "[[", names, counts)
                    yield table, number
                continue
            if assigned := _ASSIGNMENT.match(line):
                yield (*table, *_split(assigned[1])), number
        open_quote, depth = _open_after(line, open_quote, depth)


def _table(is_list: bool, names: tuple[str, ...], counts: dict[Keys, int]) -> Keys:
    """The key path of a header: each list of tables on the way adds its current index."""
    path: Keys = ()
    for name in names[:-1]:
        path = (*path, name)
        if path in counts:
            path = (*path, counts[path])
    path = (*path, names[-1])
    if not is_list:
        return path
    counts[path] = counts.get(path, -1) + 1
    return (*path, counts[path])


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(a or b or c for a, b, c in _PART.findall(dotted))


def _open_after(line: str, open_quote: str, depth: int) -> tuple[str, int]:
    """Whether a multi-line string or list is still open after this line."""
    for token in _TOKEN.findall(line):
        if token in ('"""', "'''"):
            open_quote = "" if open_quote == token else open_quote or token
        elif not open_quote and token in "[{":
            depth += 1
        elif not open_quote and token in "]}":
            depth -= 1
    return open_quote, depth
