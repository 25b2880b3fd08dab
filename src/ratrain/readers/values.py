"""What no value of a file may be, whatever its format: infinite, far too large, nested too deep."""

from __future__ import annotations

import math
from typing import Any, cast

from ratrain.errors import SpecError
from ratrain.readers.files import shown
from ratrain.readers.limits import DEPTH, DIGITS
from ratrain.readers.place import Keys, Place

_MOST = 10**DIGITS


def check_values(value: Any, place: Place, *, finite: bool = True) -> None:
    """A SpecError for the first value in tables and lists that no file should hold. Without
    `finite` numbers may be infinite."""
    problem = _problem(value, (), DEPTH, finite)
    if problem:
        keys, fault, fix = problem
        raise SpecError(fault, place=str(place.at(*keys)), fix=fix)


def _problem(value: Any, keys: Keys, depth: int, finite: bool) -> tuple[Keys, str, str] | None:
    """Where in a value something is wrong, what it is, and what to do."""
    if isinstance(value, str):
        if value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value):
            return None
        fault = f"{shown(value)} holds half of a surrogate pair, which is not text"
        return keys, fault, "remove or replace it"
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        if -_MOST < value < _MOST:
            return None
        return keys, f"{shown(value)} has more than {DIGITS} digits", "write a smaller number"
    if isinstance(value, float):
        if math.isfinite(value) or not finite:
            return None
        return keys, f"{value} is not finite", "write a finite number"
    return _problem_inside(value, keys, depth, finite) if isinstance(value, (dict, list)) else None


def _problem_inside(
    value: Any, keys: Keys, depth: int, finite: bool
) -> tuple[Keys, str, str] | None:
    if not depth:
        return keys, f"nested more than {DEPTH} deep", "close brackets, or nest it less"
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            inner = (*keys, key)
            problem = _problem(key, inner, depth, finite) or _problem(
                item, inner, depth - 1, finite
            )
            if problem:
                return problem
        return None
    for number, item in enumerate(cast("list[Any]", value)):
        kind = type(item)
        if kind is int and -_MOST < item < _MOST:
            continue
        if kind is float and math.isfinite(item):
            continue
        problem = _problem(item, (*keys, number), depth - 1, finite)
        if problem:
            return problem
    return None
