"""A cluster as the text of a cluster file: every key that is not left at its default, with its
unit. Read again it is the same cluster."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, cast

from ratrain.describe.cluster import ClusterSpec, SizePoint
from ratrain.describe.layer_profile import BlockShape, MeasuredTime
from ratrain.describe.strict import fields_of
from ratrain.describe.units import parse_bytes, parse_bytes_rate, parse_flops_rate, parse_time

_IN_LINE = (BlockShape, MeasuredTime, SizePoint)
"""Tables written on one line: `shape = {hidden = 2048, ...}`."""
_UNITS: tuple[tuple[str, Callable[[str], float], tuple[tuple[str, float], ...]], ...] = (
    ("_bytes_per_s", parse_bytes_rate, (("GB/s", 1e9), ("B/s", 1))),
    ("_bytes", parse_bytes, (("GiB", 1 << 30), ("MiB", 1 << 20), ("GB", 1e9), ("B", 1))),
    ("_flops", parse_flops_rate, (("TFLOP/s", 1e12), ("FLOP/s", 1))),
    ("_s", parse_time, (("us", 1e-6), ("ms", 1e-3), ("s", 1))),
)
"""How quantities are written: by the end of a field's name, units to try in turn."""


def cluster_text(cluster: ClusterSpec) -> str:
    """The TOML text of a cluster."""
    lines = ["# Written by `ratrain convert`. A job or a plan names it as its cluster."]
    lines += _table(cluster, ())
    return "\n".join(lines) + "\n"


def _table(value: Any, path: tuple[str, ...]) -> Iterator[str]:
    """A dataclass's plain keys, then the tables inside it."""
    inner: list[tuple[str, Any]] = []
    for key, name, item_value in _given(value):
        if _is_plain(item_value):
            yield f"{key} = {_value(name, item_value)}"
        else:
            inner.append((key, item_value))
    for key, item_value in inner:
        yield from _tables(item_value, (*path, key))


def _tables(value: Any, path: tuple[str, ...]) -> Iterator[str]:
    name = ".".join(path)
    if isinstance(value, tuple):
        for item in cast("tuple[Any, ...]", value):
            yield from ("", f"[[{name}]]")
            yield from _table(item, path)
    elif isinstance(value, Mapping):
        if not value:
            yield from ("", f"[{name}]")
        for key, item in cast("Mapping[str, Any]", value).items():
            yield from ("", f"[{name}.{key}]")
            yield from _table(item, (*path, key))
    else:
        yield from ("", f"[{name}]")
        yield from _table(value, path)


def _given(value: Any) -> Iterator[tuple[str, str, Any]]:
    """(key of the file, name of the field, value) of what is not left at its default."""
    for item in dataclasses.fields(value):
        item_value = getattr(value, item.name)
        made = item.default_factory is not dataclasses.MISSING and item.default_factory()
        if item_value == item.default or (made is not False and item_value == made):
            continue
        yield _keys(cast("type[Any]", type(value)))[item.name], item.name, item_value


@cache
def _keys(kind: type[Any]) -> dict[str, str]:
    return {field.name: field.key for field in fields_of(kind).values()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return False
    if isinstance(value, tuple):
        return all(_is_plain(item) for item in cast("tuple[Any, ...]", value))
    return not dataclasses.is_dataclass(value) or isinstance(value, _IN_LINE)


def _value(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        items = [_value(name, item) for item in cast("tuple[Any, ...]", value)]
        if any(isinstance(item, _IN_LINE) for item in cast("tuple[Any, ...]", value)):
            return "[\n" + "".join(f"  {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    if dataclasses.is_dataclass(value):
        inside = (
            f"{key} = {_value(inner, inner_value)}" for key, inner, inner_value in _given(value)
        )
        return f"{{{', '.join(inside)}}}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    for end, parse, units in _UNITS:
        if name.endswith(end):
            return f'"{_quantity(value, parse, units)}"'
    return repr(value)


def _quantity(
    value: float, parse: Callable[[str], float], units: tuple[tuple[str, float], ...]
) -> str:
    """The shortest text that is read as this value."""
    texts = [f"{value / scale:.15g}{unit}" for unit, scale in units]
    exact = [text for text in texts if parse(text) == value]
    return min(exact, key=len) if exact else f"{value!r}{units[-1][0]}"
