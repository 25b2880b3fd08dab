"""TOML: a table and the line of each of its keys, within limits.

Python's own parser reads; what it cannot bear is refused before: it takes 4 s for a key of
20,000 parts, and ends with a RecursionError for 500 brackets and a ValueError for 5,000 digits.
"""

from __future__ import annotations

import re
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from ratrain.errors import SpecError
from ratrain.readers.files import read_text, shown
from ratrain.readers.limits import DEPTH, DIGITS, TOML_BYTES
from ratrain.readers.place import Lines, Place
from ratrain.readers.toml_lines import first_twice, line_of_keys
from ratrain.readers.values import check_values

_TOKEN = re.compile(
    r'"""(?:\\.|[^\\]|\\\Z)*?(?:"""|\Z)'
    r"|'''.*?(?:'''|\Z)"
    r'|"(?:\\.|[^"\\\n])*"?'
    r"|'[^'\n]*'?"
    r"|#[^\n]*"
    rf"|[\d_]{{{DIGITS + 1},}}"
    r"|[\[\]{}\n]",
    re.DOTALL,
)
_PARTS = re.compile(rf"(?<![\w\"'.-])(?:[\w\"'-]+[ \t]*\.[ \t]*){{{DEPTH},}}")
_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_QUOTES = 'put text in quotes: name = "..."'
_FIXES = {
    "Invalid value": _QUOTES,
    "Expected '=' after a key in a key/value pair": "write key = value",
    "Expected newline or end of document after a statement": "write one key = value per line",
    "Invalid statement": "write key = value, or [table]",
    "Invalid initial character for a key part": 'write key = value; put unusual keys in "quotes"',
    "Unterminated string": "close the string with its quote",
    "Unclosed array": "close the list with ]",
    "Unclosed inline table": "close the table with }",
    "Cannot mutate immutable namespace": "write the table in one place",
    "Cannot declare": "write the table once",
    "Cannot overwrite a value": "leave one of them out",
    "Duplicate inline table key": "leave one of them out",
    "Unescaped '\\' in a string": "write \\\\ for a backslash, or use 'single quotes'",
    "Illegal character": "remove the character, or save the file as plain text",
    "Expected ']' at the end of a table declaration": "write [table]",
    "Expected ']]' at the end of an array declaration": "write [[table]]",
}


def read_toml(path: Path) -> tuple[dict[str, Any], Place]:
    """The file's table and the place of its root; whatever is wrong with it is one SpecError."""
    return parse_toml(read_text(path, TOML_BYTES), str(path))


def parse_toml(text: str, file: str) -> tuple[dict[str, Any], Place]:
    """The text's table and the place of its root."""
    _check_shape(text, file)
    place = Place(file, Lines(partial(line_of_keys, text)))
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise _twice(error, text, place) or _refused(error, text, file) from None
    check_values(table, place)
    return table, place


def _check_shape(text: str, file: str) -> None:
    """Refuses what is nested too deep and numbers that are too long, before they are parsed."""
    line, depth = 1, 0
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word == "\n":
            line += 1
        elif word in "[{":
            depth += 1
            if depth > DEPTH:
                raise SpecError(
                    f"brackets nested more than {DEPTH} deep",
                    place=f"{file}:{line}",
                    fix="close brackets, or nest it less",
                )
        elif word in "]}":
            depth = max(0, depth - 1)
        elif word[0].isdigit() or word[0] == "_":
            raise SpecError(
                f"a number of {len(word):,} digits; at most {DIGITS} are read",
                place=f"{file}:{line}",
                fix="write a smaller number",
            )
        else:
            line += word.count("\n")
    deep = _PARTS.search(text)
    if deep:
        line = text.count("\n", 0, deep.start()) + 1
        raise SpecError(
            f"a key of more than {DEPTH} parts", place=f"{file}:{line}", fix="use fewer parts"
        )


def _twice(error: ValueError, text: str, place: Place) -> SpecError | None:
    """The error of a key or table that appears twice; None where something else is wrong."""
    twice = first_twice(text) if str(error).startswith(("Cannot", "Duplicate")) else None
    if twice is None:
        return None
    file = f"{place.file}:{twice.lines[1]}"
    return SpecError(
        f"{shown(twice.keys[-1])} appears twice, {twice.in_words()}",
        place=str(Place(file, keys=twice.keys)),
        fix="leave one of them out",
    )


def _refused(error: ValueError, text: str, file: str) -> SpecError:
    """The parser's error with its line as place, and what to do."""
    parser_message = str(error)
    position = _AT.search(parser_message)
    problem = parser_message[: position.start()] if position else parser_message
    lines = text.split("\n")
    number = int(position[1]) if position and position[1] else len(lines)
    line = lines[min(number, len(lines)) - 1].strip()
    fix = next(
        (fix for start, fix in _FIXES.items() if problem.startswith(start)), "correct the line"
    )
    column = f", column {position[2]}" if position and position[2] else ""
    return SpecError(
        f"not valid TOML{column}: {problem[:1].lower()}{problem[1:]}: {shown(line)}",
        place=f"{file}:{number}",
        fix=fix,
    )
