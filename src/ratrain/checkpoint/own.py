"""States of which each replica has its own, in checkpoints: where replicas average weights by turns
they are never all alike. "weights.0of2" are those of the first replica of two. Who asks for
"weights", and finds none, gets the mean of all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ratrain.errors import CheckpointError

OUTER_WEIGHTS, OUTER_MOMENTUM = "outer_weights", "outer_momentum"
"""The kinds of an outer optimizer's states, of which all replicas have the same."""
OUTER_RESIDUAL = "outer_residual"
"""What rounding took away from what a replica sent for it, each its own."""
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


def owners(kinds: Iterable[str]) -> int:
    """Of how many replicas some kinds are; 0: of none by itself."""
    return max((int(match[3]) for kind in kinds if (match := _KIND.match(kind))), default=0)


def own_kinds(kind: str, stored: Iterable[str]) -> list[str]:
    """Those stored that are replicas' own of a kind, in the order of replicas."""
    count = owners(other for other in stored if shared_kind(other) == kind)
    return [own_kind(kind, place, count) for place in range(count)]


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
