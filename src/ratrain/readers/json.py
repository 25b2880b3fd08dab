"""JSON: a value and the line of each of its keys, within limits.

Stricter than Python's own reader, which reads: no key twice (it would take the last one), no NaN or
Infinity, no numbers too large for a float, no half of a surrogate pair, nothing nested too deep.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from ratrain.errors import SpecError
from ratrain.readers.files import decoded, read_text, shown
from ratrain.readers.json_places import first_twice, line_of_keys
from ratrain.readers.limits import DEPTH, DIGITS, JSON_BYTES
from ratrain.readers.place import Lines, Place
from ratrain.readers.values import check_values

_TOKEN = re.compile(rf'"(?:[^"\\]|\\.?)*(?:"|\Z)|[\[\]{{}}]|\d{{{DIGITS + 1},}}', re.DOTALL)
_FIXES = {
    "Expecting property name": 'put keys in "quotes", and no comma after the last one',
    "Illegal trailing comma": "remove the last comma",
    "Expecting ',' delimiter": "put a comma between two items, or close the bracket",
    "Expecting ':' delimiter": 'write "key": value',
    "Expecting value": 'write a value; text in "quotes", nothing after the last comma',
    "Extra data": "leave one table in the file",
    "Unterminated string": 'close the string with "',
    "Invalid control character": "write it escaped, as in \\n",
    "Invalid \\escape": "write \\\\ for a backslash",
    "Invalid \\uXXXX escape": "write four hexadecimal digits after \\u",
}


class _Twice(ValueError):
    """A key appears twice."""


class _Constant(ValueError):
    """NaN, Infinity or -Infinity."""


def read_json(path: Path, most_bytes: int = JSON_BYTES) -> tuple[Any, Place]:
    """The file's value and the place of its root; whatever is wrong with it is one SpecError."""
    return parse_json(read_text(path, most_bytes), str(path))


def read_json_table(path: Path, most_bytes: int = JSON_BYTES) -> tuple[dict[str, Any], Place]:
    """The same of a file that must hold a table."""
    return as_table(*read_json(path, most_bytes))


def as_table(value: Any, place: Place) -> tuple[dict[str, Any], Place]:
    """The value, where it is a table."""
    if not isinstance(value, dict):
        raise SpecError(
            f"{shown(value, 40)} is not a JSON object", place=str(place), fix='write {"key": value}'
        )
    return cast("dict[str, Any]", value), place


def parse_json(
    text: str | bytes, file: str, first_line: int = 1, *, finite: bool = True
) -> tuple[Any, Place]:
    """The text's value and the place of its root; `first_line` is where in the file it begins.
    Without `finite` NaN and Infinity are numbers, as Python writes them."""
    if isinstance(text, bytes):
        text = decoded(text, file, first_line)
    place = Place(file, Lines(partial(line_of_keys, text), first_line), form="json")
    try:
        value = json.loads(
            text, object_pairs_hook=_once, parse_constant=_refuse_constant if finite else None
        )
    except _Twice:
        raise _twice(text, place, first_line) from None
    except _Constant as error:
        raise _constant(text, str(error), file, first_line) from None
    except json.JSONDecodeError as error:
        raise _refused(error, file, first_line) from None
    except (RecursionError, ValueError):  # 1,000 brackets; 4,300 digits
        raise _shape(text, file, first_line) from None
    check_values(value, place, finite=finite)
    return value, place


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise _Twice
    return table


def _refuse_constant(constant: str) -> NoReturn:
    raise _Constant(constant)


def _twice(text: str, place: Place, first_line: int) -> SpecError:
    repeated = first_twice(text)
    if repeated is None:  # the text ends, or breaks, after the second one
        return SpecError("a key appears twice", place=str(place), fix="leave one of them out")
    return SpecError(
        f"the key {shown(repeated.keys[-1])} appears twice, {repeated.in_words(first_line)}",
        place=str(Place(f"{place.file}:{repeated.lines[1] + first_line - 1}", keys=repeated.keys)),
        fix="leave one of them out",
    )


def _constant(text: str, constant: str, file: str, first_line: int) -> SpecError:
    outside = re.sub(r'"(?:[^"\\\n]|\\.?)*"?', "", text)
    line = outside.count("\n", 0, max(outside.find(constant), 0)) + first_line
    return SpecError(
        f"{constant} is not finite", place=f"{file}:{line}", fix="write a finite number, or null"
    )


def _shape(text: str, file: str, first_line: int) -> SpecError:
    """The error of what Python's reader gave up on: it is too deep, or a number is too long."""
    depth, line = 0, first_line
    for token in _TOKEN.finditer(text):
        word = token[0]
        depth += (word in "[{") - (word in "]}")
        if word.isdigit() or depth > DEPTH:
            line += text.count("\n", 0, token.start())
        if word.isdigit():
            problem = f"a number of {len(word):,} digits; at most {DIGITS} are read"
            return SpecError(problem, place=f"{file}:{line}", fix="write a smaller number")
        if depth > DEPTH:
            break
    return SpecError(
        f"brackets nested more than {DEPTH} deep",
        place=f"{file}:{line}",
        fix="close brackets, or nest it less",
    )


def _refused(error: json.JSONDecodeError, file: str, first_line: int) -> SpecError:
    if not error.doc.strip():
        return SpecError("is empty", place=file, fix='write {"key": value}')
    lines = error.doc.split("\n")
    line = lines[min(error.lineno, len(lines)) - 1].strip()
    fix = next((fix for start, fix in _FIXES.items() if error.msg.startswith(start)), "")
    return SpecError(
        f"not valid JSON, column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}: "
        f"{shown(line)}",
        place=f"{file}:{error.lineno + first_line - 1}",
        fix=fix or "correct the line",
    )
