"""A JSON schema of what the strict loader takes, from the same type hints, for editors.

Draft 2020-12. A quantity is a string of a number and one of its units; its bounds cannot be
expressed there, and are left to the loader. A field's comment in the source becomes its
description."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from functools import cache
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from ratrain.describe import units
from ratrain.describe.strict import (
    SAMPLES,
    Field,
    FrozenMap,
    Further,
    Rule,
    bounds_of,
    fields_of,
    further_of,
)

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_UNITS = {
    "bytes": units.BYTES,
    "bytes_per_s": units.BYTES_RATE,
    "s": units.TIME,
    "flops": units.FLOPS_RATE,
}
_NUMBER = r"^\s*\+?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d{1,3})?\s*"
_FIELD = re.compile(r"    (\w+)\s*:[^#]*(?:#\s*(.*))?$")


def schema_of(kind: type[Any], title: str) -> dict[str, Any]:
    """The schema of a file that `load(kind, ...)` reads."""
    return {"$schema": DRAFT, "title": title, **_dataclass(kind)}


def _dataclass(kind: type[Any]) -> dict[str, Any]:
    fields = fields_of(kind)
    comments = _comments(kind)
    properties = {key: _field(kind, each, comments) for key, each in fields.items()}
    if further := further_of(kind):
        for key, each in _further(further[1]).items():
            properties.setdefault(key, each)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [key for key, each in fields.items() if each.required],
        "additionalProperties": False,
    }
    if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("):
        schema["description"] = inspect.cleandoc(kind.__doc__)
    return schema


def _further(further: Further) -> dict[str, Any]:
    """Keys that another key of the table brings; their descriptions name those that bring them."""
    found: dict[str, Any] = {}
    said: dict[str, dict[str, list[str]]] = {}
    for name, kind in further.all().items():
        for key, each in fields_of(kind).items():
            schema = _field(kind, each, _comments(kind))
            said.setdefault(key, {}).setdefault(schema.pop("description", ""), []).append(name)
            if found.setdefault(key, schema).get("default") != schema.get("default"):
                found[key].pop("default", None)
    for key, schema in found.items():
        schema["description"] = "; ".join(
            f"{', '.join(n)}: {text}" for text, n in said[key].items()
        )
    return found


def _field(kind: type[Any], field: Field, comments: dict[str, str]) -> dict[str, Any]:
    schema = _hint(field.hint, Rule())
    if comment := comments.get(field.name):
        schema["description"] = comment
    default = next(f.default for f in dataclasses.fields(kind) if f.name == field.name)
    rule = _rule(field.hint)
    if isinstance(default, (bool, int, float, str)) and not (rule and rule.quantity):
        schema["default"] = default
    return schema


def _hint(hint: Any, rule: Rule) -> dict[str, Any]:
    origin = get_origin(hint)
    if origin is Annotated:
        return _hint(hint.__origin__, _rule(hint) or rule)
    if origin in (Union, types.UnionType):
        branches = [_hint(each, rule) for each in get_args(hint) if each is not type(None)]
        return branches[0] if len(branches) == 1 else {"anyOf": branches}
    if origin is Literal:
        return {"enum": list(get_args(hint))}
    if origin is tuple:
        return {"type": "array", "items": _hint(get_args(hint)[0], rule)}
    if origin in (FrozenMap, dict):
        inner = get_args(hint)[-1]
        names = {"propertyNames": {"enum": list(rule.keys)}} if rule.keys else {}
        plain = dataclasses.replace(rule, keys=())
        return {"type": "object", "additionalProperties": _hint(inner, plain), **names}
    if dataclasses.is_dataclass(hint):
        return _dataclass(cast("type[Any]", hint))
    return {} if hint is Any else _plain(hint, rule)


def _plain(hint: Any, rule: Rule) -> dict[str, Any]:
    if rule.quantity:
        names = "|".join(re.escape(name) for name in sorted(_UNITS[rule.quantity], key=len))
        pattern = f"{_NUMBER}({names})\\s*$"
        return {"type": "string", "pattern": pattern, "examples": [SAMPLES[rule.quantity]]}
    if hint is bool:
        return {"type": "boolean"}
    low, high = bounds_of(hint, rule)
    if hint is str:
        return {"type": "string", "minLength": int(low), "maxLength": int(high)}
    whole = hint is int
    bounds: dict[str, float] = {"minimum": low, "maximum": high}
    if whole:
        bounds = {name: int(bound) for name, bound in bounds.items()}
    return {"type": "integer" if whole else "number", **bounds}


def _rule(hint: Any) -> Rule | None:
    for part in (hint, *get_args(hint)):
        for rule in getattr(part, "__metadata__", ()):
            if isinstance(rule, Rule):
                return rule
    return None


@cache
def _comments(kind: type[Any]) -> dict[str, str]:
    """The comment behind each field in the source, or above it; none where the source is not
    there."""
    lines: list[str] = []
    for each in reversed(kind.__mro__[:-1]):  # a dataclass' own fields after those it inherits
        try:
            lines += inspect.getsource(each).splitlines()
        except (OSError, TypeError):
            continue
    found: dict[str, str] = {}
    above: list[str] = []
    for line in lines:
        if line.startswith("    # "):
            above.append(line.removeprefix("    # "))
            continue
        field = _FIELD.match(line)
        if field and (comment := field[2] or " ".join(above)):
            found[field[1]] = comment
        above = []
    return found
