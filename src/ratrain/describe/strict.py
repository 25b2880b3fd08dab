"""The one strict loader: a table of a file becomes a frozen dataclass by its type hints.

All mistakes are collected in one SpecError: each error with its place
(`job.toml:12 [cluster] devcies`) and the nearest valid choice. A field's rule is in its type hint:
`Annotated[int, Rule("bytes", low=1)]`. A quantity's unit is part of the field's name but not of
the file's key: the field `capacity_bytes` is `capacity = "20GB"` in the file. The same hints give
the JSON schema that editors use (describe/schema.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from ratrain.describe import units
from ratrain.errors import SpecError
from ratrain.readers.faults import Faults
from ratrain.readers.files import shown
from ratrain.readers.numbers import is_number, real, whole
from ratrain.readers.place import Place

T = TypeVar("T")
V = TypeVar("V")

Quantity = Literal["bytes", "bytes_per_s", "s", "flops"]
_PARSERS: dict[str, Callable[[str], float]] = {
    "bytes": units.parse_bytes,
    "bytes_per_s": units.parse_bytes_rate,
    "s": units.parse_time,
    "flops": units.parse_flops_rate,
}
SAMPLES: dict[str, str] = {"bytes": "20GB", "bytes_per_s": "3.7GB/s", "s": "40us"} | {
    "flops": "8.1TFLOP/s"
}
"""How each quantity is written."""
HIGHEST: dict[str, float] = {"bytes": 2.0**53, "bytes_per_s": 1e18, "s": 1e9, "flops": 1e24}
"""The largest of each quantity, where its rule says nothing narrower."""
MOST_NUMBER = 10**15
"""The same of plain numbers."""
MOST_CHARS = 4096
"""The same of a text's length."""
USUAL = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "seq_len": "sequence_length",
    "batch_size": "sequences",
    "max_steps": "steps",
}
"""Names that other trainers use for keys of ours."""
LIKE = 0.65
"""How much of two words must agree for one to be taken for a slip of the other."""


@dataclass(frozen=True)
class Rule:
    """What a value must obey: a quantity with a unit, and inclusive bounds; a text's are of its
    length, and `lines` lets it have several; a mapping's `keys` are the only ones it may have.
    `sample`: the value that an error shows, where the least allowed is no sensible one."""

    quantity: Quantity | None = None
    low: float | None = None
    high: float | None = None
    keys: tuple[str, ...] = ()
    lines: bool = False
    sample: str = ""


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
class Further:
    """Further keys of a table, which one of its keys names: metadata (`FURTHER`) of the field that
    holds them. `of`: the dataclass of those of a table; `all`: every one there is, by its name."""

    of: Callable[[Mapping[str, Any]], type[Any]]
    all: Callable[[], Mapping[str, type[Any]]]


FURTHER = "further"


def further_of(kind: type[Any]) -> tuple[str, Further] | None:
    """The field of a dataclass that holds further keys of its table."""
    marked = [item for item in dataclasses.fields(kind) if FURTHER in item.metadata]
    return (marked[0].name, marked[0].metadata[FURTHER]) if marked else None


@dataclass(frozen=True)
class Field:
    """A field of a dataclass as a file has it."""

    key: str
    name: str
    hint: Any
    required: bool


def load(kind: type[T], table: Mapping[str, Any], place: Place, *, strict: bool = True) -> T:
    """A `kind` (a dataclass) from the table, or a SpecError with all that is wrong with it. Keys
    that `kind` does not know are wrong too, unless `strict` is off: then they are left alone."""
    loader = _Loader(strict)
    value = loader.dataclass(kind, table, place)
    loader.faults.raise_all()
    return value


def load_parts(
    kind: type[T], table: Mapping[str, Any], place: Place, faults: Faults
) -> dict[str, Any]:
    """The fields of a `kind` that can be loaded, by name; what is wrong goes to `faults`, so that
    whoever calls can look further at the rest."""
    loader = _Loader(strict=True, faults=faults)
    return loader.fields(kind, table, place)


def _others_with(key: str, further: Further) -> list[str]:
    """By what a table would have that further key."""
    return [name for name, part in further.all().items() if key in fields_of(part)]


def nearest(word: str, choices: Iterable[str]) -> str:
    """The `fix` of an unknown word: the nearest valid one first, then all of them."""
    names = list(choices)
    near = _near(word, names)
    lead = f'did you mean "{near[0]}"? ' if near else ""
    return f"{lead}valid: {', '.join(names)}"


def _near(word: str, names: Iterable[str]) -> list[str]:
    """The name that a word is most like, if any."""
    names = list(names)
    usual = USUAL.get(word.lower())
    if usual in names:
        return [usual]
    if begun := [name for name in names if len(word) > 2 and _bare(name).startswith(_bare(word))]:
        return [min(begun, key=lambda name: (not name.startswith(word), len(name)))]
    return difflib.get_close_matches(word[:MOST_CHARS].lower(), list(names), n=1, cutoff=LIKE)


def _bare(name: str) -> str:
    """Its letters and digits: "llama3" begins "llama-3.1-8b"."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


class _Wrong(Exception):
    """A value that is wrong, and was reported."""


class _Loader:
    """One file's load: what was wrong so far."""

    def __init__(self, strict: bool, faults: Faults | None = None) -> None:
        self.faults = Faults() if faults is None else faults
        self._strict = strict

    def dataclass(self, kind: type[Any], table: Mapping[str, Any], place: Place) -> Any:
        """The dataclass of a table; None where it was wrong."""
        try:
            return self._dataclass(kind, table, place)
        except _Wrong:
            return None

    def _dataclass(self, kind: type[Any], table: Mapping[str, Any], place: Place) -> Any:
        known = fields_of(kind)
        values = self.fields(kind, table, place)
        if any(field.name not in values and _given(field, table) for field in known.values()):
            raise _Wrong
        try:
            return kind(**values)
        except SpecError as error:  # numbers that contradict each other; its place is a key
            where = place.at(*_keys_of(error.place)) if error.place else place
            raise self._told(error.what, where, error.fix) from None

    def fields(self, kind: type[Any], table: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """The values of a table's keys, by the fields' names; those that are right."""
        known = fields_of(kind)
        values: dict[str, Any] = {}
        keys, misspelt = dict.fromkeys(known), set[str]()
        if further := further_of(kind):
            name, part = further[0], further[1].of(table)
            own = {key: value for key, value in table.items() if key in fields_of(part)}
            with contextlib.suppress(_Wrong):
                values[name] = self._dataclass(part, own, place)
            keys.update(dict.fromkeys(fields_of(part)))
        for key in table:
            if self._strict and key not in keys:
                of = _others_with(key, further[1]) if further else []
                what = f"unknown key (it is one of {', '.join(of)})" if of else "unknown key"
                self._told(what, place.at(key), nearest(key, keys))
                misspelt.update(_near(key, keys))
        for key, field in known.items():
            if key in table:
                try:
                    values[field.name] = self._convert(
                        field.hint, table[key], place.at(key), Rule()
                    )
                except _Wrong:
                    continue
            elif field.required and key not in misspelt:
                self._told(
                    f'the key "{key}" is missing', place, _how_to_add(key, field.hint, place)
                )
        return values

    def _told(self, what: str, place: Place, fix: str) -> _Wrong:
        """Takes an error in; what is returned is to be raised where the value is needed."""
        self.faults.add(SpecError(what, place=str(place), fix=fix))
        return _Wrong()

    def _convert(self, hint: Any, value: Any, place: Place, rule: Rule) -> Any:
        """The value as the hint says, checked against its rule."""
        origin = get_origin(hint)
        if origin is Annotated:
            narrower = next((m for m in hint.__metadata__ if isinstance(m, Rule)), rule)
            return self._convert(hint.__origin__, value, place, narrower)
        if origin in (Union, types.UnionType):
            return self._union(hint, value, place, rule)
        if origin is Literal:
            return self._choice(get_args(hint), value, place)
        if origin is tuple:
            return self._list(get_args(hint)[0], value, place, rule)
        if origin is FrozenMap:
            return FrozenMap(self._mapping(get_args(hint)[0], value, place, rule))
        if origin is dict:
            return self._mapping(get_args(hint)[1], value, place, rule)
        if dataclasses.is_dataclass(hint):
            table = cast("dict[str, Any]", self._expect(value, dict, place.table_word, place))
            return self._dataclass(cast("type[Any]", hint), table, place)
        if hint is Any:
            return value
        return self._plain(hint, value, place, rule)

    def _union(self, hint: Any, value: Any, place: Place, rule: Rule) -> Any:
        """The branch whose shape the value has; with none, the one that was meant says so."""
        if value is None and type(None) in get_args(hint):
            return None
        branches = [branch for branch in get_args(hint) if branch is not type(None)]
        words = get_origin(branches[-1]) is Literal
        for branch in branches[:-1]:
            if _has_shape(branch, value) or (words and _is_meant(branch, value)):
                return self._convert(branch, value, place, rule)
        return self._convert(branches[-1], value, place, rule)

    def _choice(self, choices: tuple[Any, ...], value: Any, place: Place) -> Any:
        for choice in choices:
            if type(choice) is type(value) and choice == value:
                return choice
        names = [str(choice) for choice in choices]
        raise self._told(
            f"{shown(value)} is not an allowed value", place, nearest(str(value), names)
        )

    def _list(self, hint: Any, value: Any, place: Place, rule: Rule) -> tuple[Any, ...]:
        items = cast("list[Any]", self._expect(value, list, "a list", place))
        return tuple(
            self._all(
                (lambda item=item, number=number: self._convert(hint, item, place.at(number), rule))
                for number, item in enumerate(items)
            )
        )

    def _mapping(self, hint: Any, value: Any, place: Place, rule: Rule) -> dict[str, Any]:
        items = cast("dict[str, Any]", self._expect(value, dict, place.table_word, place))
        unknown = [key for key in items if rule.keys and key not in rule.keys]
        for key in unknown:
            self._told("unknown key", place.at(key), nearest(key, rule.keys))
        inner = dataclasses.replace(rule, keys=())
        converted = self._all(
            (lambda key=key, item=item: self._convert(hint, item, place.at(key), inner))
            for key, item in items.items()
        )
        if unknown:
            raise _Wrong
        return dict(zip(items, converted, strict=True))

    def _all(self, makers: Iterable[Callable[[], V]]) -> list[V]:
        """What all make; where one is wrong the others are looked at all the same."""
        made: list[V] = []
        wrong = False
        for make in makers:
            try:
                made.append(make())
            except _Wrong:
                wrong = True
        if wrong:
            raise _Wrong
        return made

    def _plain(self, hint: Any, value: Any, place: Place, rule: Rule) -> Any:
        if rule.quantity is not None:
            text = self._expect(value, str, f"a quantity with its unit{_like(rule)}", place, rule)
            try:
                number: Any = _PARSERS[rule.quantity](text)
            except SpecError as error:
                raise self._told(error.what, place, error.fix) from None
            return self._bounded(number, value, place, rule)
        if hint is str:
            return self._text(self._expect(value, str, "a text", place), place, rule)
        if hint is bool:
            return self._expect(value, bool, "true or false", place)
        wanted = "a whole number" if hint is int else "a number"
        if isinstance(value, bool) or not isinstance(value, int if hint is int else (int, float)):
            raise self._wrong_type(value, wanted, place, hint)
        return self._bounded(value if hint is int else float(value), value, place, rule)

    def _text(self, text: str, place: Place, rule: Rule) -> str:
        low, high = bounds_of(str, rule)
        if len(text.strip()) < low:
            fix = f"write {place.written(str(place.keys[-1]), _TEXT)}" if place.keys else ""
            raise self._told("an empty text", place, fix)
        if len(text) > high:
            raise self._told(
                f"a text of {len(text):,} characters", place, f"use at most {high:,.0f}"
            )
        if not (text.replace("\n", "") if rule.lines else text).isprintable():
            raise self._told(
                f"{shown(text)} has characters that cannot be printed", place, "remove them"
            )
        return text

    def _bounded(self, number: Any, written: Any, place: Place, rule: Rule) -> Any:
        low, high = bounds_of(float, rule)
        if not number >= low:
            raise self._told(
                f"{shown(written)} is below the smallest allowed",
                place,
                f"use at least {in_words(low, rule)}",
            )
        if number > high:
            raise self._told(
                f"{shown(written)} is above the largest allowed",
                place,
                f"use at most {in_words(high, rule)}",
            )
        return number

    def _expect(
        self, value: Any, kind: type[V], wanted: str, place: Place, rule: Rule | None = None
    ) -> V:
        if not isinstance(value, kind):
            hint = Annotated[kind, rule] if rule else kind
            raise self._wrong_type(value, wanted, place, hint)
        return value

    def _wrong_type(self, value: Any, wanted: str, place: Place, hint: Any) -> _Wrong:
        key = place.keys[-1] if place.keys else 0
        mended, sample = _mended(value, hint), sample_of(hint)
        if mended and isinstance(key, str):
            fix = f"write {place.written(key, mended)}"
        elif mended or sample == _NO_SAMPLE or not isinstance(key, str):
            fix = f"write {mended or wanted}"
        else:
            fix = f"write {wanted}, as in {place.written(key, sample)}"
        return self._told(f"{shown(value)} is not {wanted}", place, fix)


def bounds_of(kind: type[Any], rule: Rule) -> tuple[float, float]:
    """The smallest and the largest value that a rule allows: of a text, of its length."""
    if kind is str and rule.quantity is None:
        low, high = 1.0, float(MOST_CHARS)
    elif rule.quantity is not None:
        low, high = 0.0, HIGHEST[rule.quantity]
    else:
        low, high = -float(MOST_NUMBER), float(MOST_NUMBER)
    return low if rule.low is None else rule.low, high if rule.high is None else rule.high


def in_words(bound: float, rule: Rule) -> str:
    """A bound as a file would have it."""
    formats = {
        "bytes": units.format_bytes,
        "bytes_per_s": units.format_bytes_rate,
        "s": units.format_time,
        "flops": units.format_flops_rate,
    }
    if rule.quantity:
        text = formats[rule.quantity](bound)
        return f'"{text.replace(" ", "")}"' if bound else '"0 B"'.replace("B", _UNIT[rule.quantity])
    return f"{bound:,.0f}" if abs(bound) >= 1e4 and bound == int(bound) else f"{bound:g}"


_UNIT = {"bytes": "B", "bytes_per_s": "B/s", "s": "s", "flops": "FLOP/s"}
_TEXT, _NO_SAMPLE = '"..."', "..."


def sample_of(hint: Any) -> str:
    """A value that the hint allows, as a file would have it; "..." where none is short."""
    rule = Rule()
    if get_origin(hint) is Annotated:
        rule = next((m for m in hint.__metadata__ if isinstance(m, Rule)), rule)
        hint = hint.__origin__
    if get_origin(hint) in (Union, types.UnionType):
        return sample_of(get_args(hint)[0])
    if rule.sample:
        return rule.sample
    if rule.quantity:
        return f'"{SAMPLES[rule.quantity]}"'
    if get_origin(hint) is Literal:
        choice = get_args(hint)[0]
        return f'"{choice}"' if isinstance(choice, str) else str(choice)
    low = max(rule.low or 0, 1) if rule.high is None else rule.low or 0
    numbers = {int: f"{low:.0f}", float: f"{float(low)}"}
    return {str: _TEXT, bool: "false", **numbers}.get(hint, _NO_SAMPLE)


def _how_to_add(key: str, hint: Any, place: Place) -> str:
    """What adds a key that is missing: its line, or of a table its name and what it must hold."""
    names = (*place.keys, key)
    is_table = dataclasses.is_dataclass(hint) and place.form != "json"
    if is_table and all(isinstance(name, str) for name in names):
        needed = [
            name for name, field in fields_of(cast("type[Any]", hint)).items() if field.required
        ]
        return f"add the table [{'.'.join(map(str, names))}] with {', '.join(needed)}"
    return f"add {' or '.join(place.written(key, sample) for sample in samples_of(hint))}"


def samples_of(hint: Any) -> list[str]:
    """A value of each kind that the hint allows: a number, or a word in its place."""
    branches = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [sample_of(branch) for branch in branches if branch is not type(None)]


@cache
def fields_of(kind: type[Any]) -> dict[str, Field]:
    """The fields of a dataclass by the file's keys, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    fields: dict[str, Field] = {}
    for item in dataclasses.fields(kind):
        if FURTHER in item.metadata:
            continue
        hint = hints[item.name]
        required = (
            item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        )
        key = _file_key(item.name, hint)
        fields[key] = Field(key, item.name, hint, required)
    return fields


def _mended(value: Any, hint: Any) -> str:
    """The value of another type as its file should have it, where it is plain what was meant."""
    if hint is int and isinstance(value, float):
        return f"{value:.0f}"
    if hint in (int, float) and isinstance(value, str):
        try:
            return str(whole(value.strip()) if hint is int else real(value.strip()))
        except ValueError:
            return ""
    if hint is bool:
        words = {"true": ("true", "yes", "on", "1"), "false": ("false", "no", "off", "0")}
        return next((word for word, said in words.items() if str(value).lower() in said), "")
    if hint is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'"{value}"'
    return ""


def _has_shape(hint: Any, value: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _has_shape(hint.__origin__, value)
    origin = get_origin(hint)
    if origin is Literal:
        return isinstance(value, type(get_args(hint)[0]))
    if origin is tuple:
        return isinstance(value, list)
    return isinstance(hint, type) and isinstance(value, hint) and not isinstance(value, bool)


def _is_meant(hint: Any, value: Any) -> bool:
    """Whether a value should be a whole number: its text is one, or it is no text."""
    plain = hint.__origin__ if get_origin(hint) is Annotated else hint
    return plain is int and (not isinstance(value, str) or bool(_mended(value, int)))


def _given(field: Field, table: Mapping[str, Any]) -> bool:
    """Whether a dataclass cannot be made without this field's value."""
    return field.required or field.key in table


def _keys_of(place: str) -> tuple[str | int, ...]:
    """ "host.0.device" as keys."""
    return tuple(int(part) if is_number(part) else part for part in place.split("."))


def _like(rule: Rule) -> str:
    return f' such as "{SAMPLES[rule.quantity]}"' if rule.quantity else ""


def _file_key(name: str, hint: Any) -> str:
    """`capacity_bytes` -> `capacity`: the file carries the unit in the value."""
    for part in (hint, *get_args(hint)):
        for rule in getattr(part, "__metadata__", ()):
            if isinstance(rule, Rule) and rule.quantity:
                return name.removesuffix(f"_{rule.quantity}")
    return name
