"""What a family of models is: how its config.json reads, and where its files hold each parameter.

What a family computes is said by the `ModelSpec` that its config becomes, field by field, so a
family of known pieces is one file in `families/` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.readers.place import Place


@dataclass(frozen=True)
class Packed:
    """A tensor that holds several of our matrices (or vectors), one below the other. `by_head`:
    one key head after the other, each with a piece of every one of them."""

    tensor: str
    of: tuple[str, ...]
    by_head: bool = False


@dataclass(frozen=True)
class Numbered:
    """Of a stack of matrices a tensor each: the first "{}" is the layer's number, the second the
    matrix' own."""

    tensor: str


Named = str | Packed | Numbered
"""Where files hold a module; the name of a whole stack has no ".weight" behind it."""


@dataclass(frozen=True)
class Family:
    """A family of Hugging Face models.

    `read` gives the fields of a ModelSpec but for its name and family, and raises SpecError; a
    `head_dim` of None stands for hidden / heads. `write` gives the keys of a config.json, beside
    what all have; what it cannot say is found by reading it again. `tensors` names, for each of our
    modules ("attention.q"), theirs, "{}" being the layer's number.
    """

    name: str  # model_type
    architecture: str
    says: str  # which models belong to it
    read: Callable[[Mapping[str, Any], Place], dict[str, Any]]
    write: Callable[[ModelSpec], dict[str, Any]]
    tensors: Mapping[str, Named]
    transposed: frozenset[str] = frozenset()  # modules whose files hold (inputs, outputs)
    also: Mapping[str, Named] = field(default_factory=dict[str, Named])  # in files of other makers


def fields_of(read: object, keys: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a ModelSpec that keys of a config say by themselves; `keys`: by field."""
    return {field: getattr(read, key) for field, key in keys.items()}


def keys_of(model: ModelSpec, keys: Mapping[str, str]) -> dict[str, Any]:
    """The keys that say them."""
    return {key: getattr(model, field) for field, key in keys.items()}


def refuse(place: Place, cases: Iterable[tuple[str, bool, str]], fix: str) -> None:
    """Raises SpecError at the first of (key, whether it is so, what that is) that is so."""
    for key, is_so, what in cases:
        if is_so:
            raise SpecError(f"{what} is not supported", place=str(place.at(key)), fix=fix)
