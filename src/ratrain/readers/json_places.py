"""The line of each key of a JSON text, and keys that stand in it twice.

Slow, and so done only where there is an error to place. The text must be valid JSON, at least as
far as it is read.
"""

from __future__ import annotations

import json
import re

from ratrain.readers.place import Keys, Twice

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:\n]|[^\s{}\[\],:"]+')


def line_of_keys(text: str) -> dict[Keys, int]:
    """The keys of every value -> its line from 1."""
    return _scan(text)[0]


def first_twice(text: str) -> Twice | None:
    """The first key that appears a second time. What comes behind it is not read: it may be
    broken."""
    return _scan(text, until_twice=True)[1]


def _scan(text: str, *, until_twice: bool = False) -> tuple[dict[Keys, int], Twice | None]:
    lines: dict[Keys, int] = {(): 1}
    line = 1
    path: list[str | int] = []
    tables: list[bool] = []  # for each open bracket, whether it is a table's
    key_next = False
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word == "\n":
            line += 1
        elif word in "{[":
            lines.setdefault(tuple(path), line)
            tables.append(word == "{")
            key_next = word == "{"
            path.append("" if word == "{" else 0)
        elif word in "}]":
            tables.pop()
            path.pop()
        elif word == ",":
            key_next = tables[-1]
            if not key_next:
                number = path[-1]
                assert isinstance(number, int)
                path[-1] = number + 1
        elif word == ":":
            key_next = False
        elif key_next:
            path[-1] = str(json.loads(word))
            keys = tuple(path)
            if until_twice and keys in lines:
                return lines, Twice(keys, (lines[keys], line))
            lines.setdefault(keys, line)
        elif tables and not tables[-1]:
            lines.setdefault(tuple(path), line)
    return lines, None
