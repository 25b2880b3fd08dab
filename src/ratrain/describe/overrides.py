"""Values that the command line puts in place of a job file's: `--set train.steps=10`.

A value is written as in the file (`0.1`, `true`, `"28MB"`, `["a.txt"]`); a word that would need
quotes there may go without. It is loaded as strictly as the file, and an error names `--set
train.steps` as its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ratrain.errors import SpecError
from ratrain.readers.limits import DEPTH
from ratrain.readers.place import Place
from ratrain.readers.toml import parse_toml

_KEY = re.compile(r"[A-Za-z0-9_-]+")
_COLUMN = re.compile(r", column \d+")
_SAMPLE = "write it as TABLE.KEY=VALUE, for example --set train.steps=10"
MOST_CHARS = 1 << 16
"""Of one override."""


def with_overrides(
    table: Mapping[str, Any], place: Place, overrides: Sequence[str]
) -> tuple[dict[str, Any], Place]:
    """The table with each "train.steps=10" in it, and the place that knows which these are."""
    changed = dict(table)
    for text in overrides:
        keys, value = _parsed(text)
        place = place.overridden(keys[: _put(changed, keys, value)])
    return changed, place


def combined(before: Sequence[str], now: Sequence[str]) -> tuple[str, ...]:
    """Overrides of before and now, of which the later ones count."""
    by_name = {text.partition("=")[0].strip(): text for text in (*before, *now)}
    return tuple(by_name.values())


def _parsed(text: str) -> tuple[tuple[str, ...], Any]:
    if len(text) > MOST_CHARS:
        raise SpecError(
            f"{len(text):,} characters; at most {MOST_CHARS:,} are read", place="--set", fix=_SAMPLE
        )
    name, equals, value = text.partition("=")
    keys = tuple(key.strip() for key in name.split("."))
    if not equals or len(keys) < 2 or not all(map(_KEY.fullmatch, keys)):
        raise SpecError(
            f"{_short(text)} does not name a value of a job", place="--set", fix=_SAMPLE
        )
    if len(keys) > DEPTH:
        raise SpecError(f"a key of more than {DEPTH} parts", place="--set", fix=_SAMPLE)
    if not text.isprintable():
        raise SpecError(
            f"{_short(text)} has characters that cannot be printed",
            place=f"--set {'.'.join(keys)}",
            fix="write it on one line, with \\n for a line feed in quotes",
        )
    return keys, _value(value.strip(), f"--set {'.'.join(keys)}")


def _value(text: str, place: str) -> Any:
    """What TOML makes of a value; a bare word is a text."""
    if not text:
        raise SpecError("there is no value", place=place, fix=_SAMPLE)
    try:
        table, _ = parse_toml(f"value = {text}", place)
        return table["value"]
    except SpecError as error:
        if text[0] in "\"'[{":
            raise SpecError(
                f"{_short(text)}{_as_said(error.what)}",
                place=place,
                fix="write the value as in a job file, in quotes for your shell",
            ) from error
        return text


def _as_said(what: str) -> str:
    """What the reader says of the line "value = ...", without the place in that line."""
    what = _COLUMN.sub("", what.replace("value = ", "", 1))
    return f" is {what}" if what.startswith("not ") else f": {what}"


def _put(table: dict[str, Any], keys: tuple[str, ...], value: Any) -> int:
    """Puts a value in its place; tables on the way are copied, or made. How many keys lead to what
    is new: to the first table that was made, or to the value."""
    new = len(keys)
    for depth, key in enumerate(keys[:-1], start=1):
        new = new if key in table else min(new, depth)
        inner = table.get(key, {})
        if not isinstance(inner, dict):
            at = ".".join(keys[:depth])
            raise SpecError(
                f"{at} is a value, not a table", place=f"--set {'.'.join(keys)}", fix=_SAMPLE
            )
        table[key] = dict(cast("dict[str, Any]", inner))
        table = table[key]
    table[keys[-1]] = value
    return new


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
