"""Residuals of gradients that were rounded, in checkpoints: of each unit one for every rank that
holds it, "residual1of3" that of the second of three. Units of stages that fewer members share have
fewer, and of a unit that one rank holds there is none."""

from __future__ import annotations

import re
from collections.abc import Iterable

_KIND = re.compile(r"residual(\d+)of(\d+)\Z")


def residual_kind(place: int, holders: int) -> str:
    """The kind of state that is the residual of a unit's holder."""
    return f"residual{place}of{holders}"


def is_residual(kind: str) -> bool:
    """Whether a kind of state is a holder's residual."""
    return _KIND.match(kind) is not None


def all_residuals(kind: str) -> list[str]:
    """The residuals of all holders of a unit, of which `kind` is that of one; none otherwise."""
    holders = residual_holders([kind])
    return [residual_kind(place, holders) for place in range(holders)]


def residual_holders(kinds: Iterable[str]) -> int:
    """How many ranks' residuals are among these kinds of state; 0: none."""
    return max((int(match[2]) for kind in kinds if (match := _KIND.match(kind))), default=0)


def begun_with(kind: str, stored: Iterable[str]) -> list[str]:
    """The stored kinds whose sum a holder's residual begins with: its own, where as many ranks hold
    the unit as when it was saved. Else the first holder takes the sum of all and the others begin
    with zero: gradients are added up over holders, so nothing that was not sent yet is lost."""
    kinds = sorted((k for k in stored if is_residual(k)), key=_place)
    if kind in kinds:
        return [kind]
    return kinds if _place(kind) == 0 else []


def _place(kind: str) -> int:
    match = _KIND.match(kind)
    return int(match[1]) if match else 0
