"""States of which each rank, replica or site has its own, in checkpoints: "weights.0of2" are those
of the first replica of two, where they average weights by turns and are never all alike. Who asks
for "weights", and finds none, gets the mean of all."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from ratrain.describe.saved import Regrouped, saved_as
from ratrain.errors import CheckpointError

SITE_WEIGHTS = "site_weights"
"""In a checkpoint's state, where sites count unlike in the mean of theirs: how much each does."""

_KIND = re.compile(r"(.+)\.(\d+)of(\d+)\Z")


def own_kind(kind: str, place: int, holders: int) -> str:
    """The kind of state that is a replica's own."""
    return f"{kind}.{place}of{holders}"


def shared_kind(kind: str) -> str:
    """The kind of which a kind is a replica's own; the kind itself otherwise."""
    match = _KIND.match(kind)
    return match[1] if match else kind


def own_kinds(kind: str, stored: Iterable[str]) -> list[str]:
    """Those stored that are replicas' own of a kind, in the order of replicas."""
    matches = (match for other in stored if (match := _KIND.match(other)) and match[1] == kind)
    count = max((int(match[3]) for match in matches), default=0)
    return [own_kind(kind, place, count) for place in range(count)]


def begun_with(kind: str, stored: Collection[str]) -> list[str]:
    """The stored kinds whose sum a kind of state begins with, as its entry is declared; of none:
    with zero. What is missing and must be there is named too, for the reader to say so."""
    if kind in stored:
        return [kind]
    shared = shared_kind(kind)
    entry, each = saved_as(shared), own_kinds(shared, stored)
    if each and entry.regrouped is Regrouped.SUM:
        return each if kind.startswith(f"{shared}.0of") else []
    if each and entry.regrouped is Regrouped.ZERO:
        return []
    if each or shared in stored or entry.begins is None:
        return [shared]  # of several their mean
    return begun_with(entry.begins, stored) if entry.begins else []


def site_weights(state: Mapping[str, Any], count: int, place: str) -> list[float]:
    """How much each of so many replicas or sites counts in their mean, as a checkpoint says."""
    said: object = state.get(SITE_WEIGHTS, [1.0] * count)
    weights = cast("list[object]", said) if isinstance(said, list) else []
    if len(weights) != count or not all(isinstance(weight, float) for weight in weights):
        raise CheckpointError(
            f"does not say how much each of {count} sites counts in the mean of their weights",
            place=place,
            fix="use another checkpoint",
        )
    return cast("list[float]", weights)
