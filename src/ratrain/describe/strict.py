"""The one strict loader: a TOML (or JSON) table becomes a frozen dataclass by its type hints.

Every wrong thing is one SpecError with its place (`job.toml:12 [cluster] devcies`) and the
nearest valid choice. A field's rule stands in its hint: `Annotated[int, Rule("bytes", low=1)]`.
A quantity's unit is part of the field's name but not of the file's key: the field
`capacity_bytes` is `capacity = "20GB"` in the file.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ratrain.describe import units
from ratrain.describe.lines import Keys, line_of_keys
from ratrain.errors import SpecError

T = TypeVar("T")
V = TypeVar("V")

Quantity = Literal["bytes", "bytes_per_s", "s", "flops"]
_PARSERS: dict[str, Callable[[str], float]] = {
    "bytes": units.parse_bytes,
    "bytes_per_s": units.parse_bytes_rate,
    "s": units.parse_time,
    "flops": units.parse_flops_rate,
}


@dataclass(frozen=True)
class Rule:
    """What a value must obey: a quantity with a unit, and inclusive bounds."""

    quantity: Quantity | None = None
    low: float | None = None
    high: float | None = None


class FrozenMap(Mapping[str, V]):
    """A mapping that cannot change, so that the dataclass that holds it is hashable."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, V] | None = None) -> None:
        self._items: dict[str, V] = dict(items or {})

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


@dataclass(frozen=True)
class Place:
    """Where a value stands: the file, the lines of its keys, and the keys down to here."""

    file: str = ""
    lines: Mapping[Keys, int] = field(default_factory=dict[Keys, int])
    keys: Keys = ()

    def at(self, key: str | int) -> Place:
        """The place one key (or list index) further in."""
        return dataclasses.replace(self, keys=(*self.keys, key))

    def __str__(self) -> str:
        known = next(
            (k for n in range(len(self.keys), 0, -1) if (k := self.keys[:n]) in self.lines), ()
        )
        line = f":{self.lines[known]}" if known else ""
        tables, last = self.keys[:-1], self.keys[-1:]
        table = ".".join(str(key) for key in tables)
        return " ".join(
            part
            for part in (f"{self.file}{line}", f"[{table}]" if table else "", *map(str, last))
            if part
        )


def read_toml(path: Path) -> tuple[dict[str, Any], Place]:
    """The file's table and the place of its root; a file that cannot be read is a SpecError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"cannot read the file: {reason}", place=str(path)) from error
    return parse_toml(text, str(path))


def parse_toml(text: str, file: str) -> tuple[dict[str, Any], Place]:
    """The text's table and the place of its root."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"not valid TOML: {error}", place=file) from error
    return table, Place(file, line_of_keys(text))


def load(kind: type[T], table: Mapping[str, Any], place: Place) -> T:
    """A `kind` (a dataclass) from the table, or a SpecError that names the first wrong key."""
    fields = _fields(kind)
    for key in table:
        if key not in fields:
            raise SpecError("unknown key", place=str(place.at(key)), fix=nearest(key, fields))
    values: dict[str, Any] = {}
    for key, (name, hint, required) in fields.items():
        if key in table:
            values[name] = convert(hint, table[key], place.at(key))
        elif required:
            raise SpecError(
                f'the key "{key}" is missing', place=str(place), fix=f"add {key} = {_sample(hint)}"
            )
    return kind(**values)


def nearest(word: str, choices: Mapping[str, Any] | tuple[str, ...] | list[str]) -> str:
    """The `fix` of an unknown word: the nearest valid one first, then all of them."""
    near = difflib.get_close_matches(word.lower(), list(choices), n=1, cutoff=0.5)
    lead = f'did you mean "{near[0]}"? ' if near else ""
    return f"{lead}valid: {', '.join(choices)}"


def convert(hint: Any, value: Any, place: Place, rule: Rule | None = None) -> Any:
    """The value as the hint says, checked against its rule."""
    rule = rule or Rule()
    origin = get_origin(hint)
    if hasattr(hint, "__metadata__"):
        own = next((m for m in hint.__metadata__ if isinstance(m, Rule)), rule)
        return convert(hint.__origin__, value, place, own)
    if origin in (Union, types.UnionType):
        return _convert_union(hint, value, place, rule)
    if origin is Literal:
        if value not in get_args(hint) or isinstance(value, bool) != isinstance(
            get_args(hint)[0], bool
        ):
            choices = [str(choice) for choice in get_args(hint)]
            raise SpecError(
                f"{value!r} is not a choice", place=str(place), fix=nearest(str(value), choices)
            )
        return value
    if origin is tuple:
        items = cast("list[Any]", _expect(value, list, "a list", place))
        return tuple(
            convert(get_args(hint)[0], item, place.at(i), rule) for i, item in enumerate(items)
        )
    if origin is FrozenMap:
        items = cast("dict[str, Any]", _expect(value, dict, "a table", place))
        inner = get_args(hint)[0]
        return FrozenMap(
            {key: convert(inner, item, place.at(key), rule) for key, item in items.items()}
        )
    if dataclasses.is_dataclass(hint):
        inside = cast("dict[str, Any]", _expect(value, dict, "a table", place))
        return load(cast("type[Any]", hint), inside, place)
    return _convert_plain(hint, value, place, rule)


def _convert_union(hint: Any, value: Any, place: Place, rule: Rule) -> Any:
    """The branch whose shape the value has; with none, the last branch gives the error."""
    branches = [branch for branch in get_args(hint) if branch is not type(None)]
    for branch in branches[:-1]:
        if _has_shape(branch, value):
            return convert(branch, value, place, rule)
    return convert(branches[-1], value, place, rule)


def _has_shape(hint: Any, value: Any) -> bool:
    if hasattr(hint, "__metadata__"):
        return _has_shape(hint.__origin__, value)
    origin = get_origin(hint)
    if origin is Literal:
        return isinstance(value, type(get_args(hint)[0]))
    if origin is tuple:
        return isinstance(value, list)
    return isinstance(hint, type) and isinstance(value, hint) and not isinstance(value, bool)


def _convert_plain(hint: Any, value: Any, place: Place, rule: Rule) -> Any:
    if rule.quantity is not None:
        sample = _SAMPLES[rule.quantity]
        text = _expect(value, str, f"a quantity with its unit such as {sample}", place)
        try:
            number: Any = _PARSERS[rule.quantity](text)
        except SpecError as error:
            raise SpecError(error.what, place=str(place), fix=error.fix) from None
        return _bounded(number, value, place, rule)
    if hint is str:
        return _expect(value, str, "a string", place)
    if hint is bool:
        return _expect(value, bool, "true or false", place)
    if isinstance(value, bool) or not isinstance(value, int if hint is int else (int, float)):
        raise _wrong_type(value, "a whole number" if hint is int else "a number", place)
    return _bounded(value if hint is int else float(value), value, place, rule)


def _bounded(number: Any, written: Any, place: Place, rule: Rule) -> Any:
    low = 0.0 if rule.low is None and rule.quantity else rule.low
    if number != number or (low is not None and number < low):
        limit = f"at least {low:g}" if low else "0 or more"
        raise SpecError(
            f"{written!r} is below the smallest allowed", place=str(place), fix=f"use {limit}"
        )
    if rule.high is not None and number > rule.high:
        raise SpecError(
            f"{written!r} is above the largest allowed",
            place=str(place),
            fix=f"use at most {rule.high:g}",
        )
    return number


def _expect(value: Any, kind: type[V], wanted: str, place: Place) -> V:
    if not isinstance(value, kind):
        raise _wrong_type(value, wanted, place)
    return value


def _wrong_type(value: Any, wanted: str, place: Place) -> SpecError:
    return SpecError(f"{value!r} is not {wanted}", place=str(place), fix=f"write {wanted}")


_SAMPLES = {"bytes": '"20GB"', "bytes_per_s": '"3.7GB/s"', "s": '"40us"', "flops": '"8.1TFLOP/s"'}


def _sample(hint: Any) -> str:
    for rule in getattr(hint, "__metadata__", ()):
        if isinstance(rule, Rule) and rule.quantity:
            return _SAMPLES[rule.quantity]
    base = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    if get_origin(base) is Literal:
        return f'"{get_args(base)[0]}"'
    return {str: '"..."', int: "1", float: "1.0", bool: "false"}.get(base, "...")


@cache
def _fields(kind: type[Any]) -> dict[str, tuple[str, Any, bool]]:
    """File key -> (field name, hint, required), in the order of the dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, tuple[str, Any, bool]] = {}
    for item in dataclasses.fields(kind):
        hint = hints[item.name]
        required = (
            item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        )
        found[_file_key(item.name, hint)] = (item.name, hint, required)
    return found


def _file_key(name: str, hint: Any) -> str:
    """`capacity_bytes` -> `capacity`: the file carries the unit in the value."""
    for part in (hint, *get_args(hint)):
        for rule in getattr(part, "__metadata__", ()):
            if isinstance(rule, Rule) and rule.quantity:
                return name.removesuffix(f"_{rule.quantity}")
    return name
