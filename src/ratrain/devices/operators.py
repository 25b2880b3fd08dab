"""Torch's operators as a device meets them: what an operator's schema says, the tensors among its
arguments, and one way to put something else in an operator's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Answer = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
"""What an operator gives for its arguments."""


@dataclass(frozen=True)
class Rule:
    """What an operator's schema says. `writes`: the names of the arguments that it changes."""

    names: tuple[str, ...]
    writes: frozenset[str]
    views: bool
    returns: bool
    word: str


@cache
def rule_of(operator: Any) -> Rule:
    """An operator's."""
    schema = operator._schema
    writes = [
        a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    ]
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return Rule(
        tuple(a.name for a in schema.arguments),
        frozenset(writes),
        views,
        bool(schema.returns),
        str(operator),
    )


def tensors_of(
    rule: Rule, args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[tuple[bool, Tensor]]:
    """(whether it is written, tensor) for each tensor among the arguments."""
    for name, value in [*zip(rule.names, args, strict=False), *kwargs.items()]:
        for leaf in leaves(value):
            if isinstance(leaf, Tensor):
                yield name in rule.writes, leaf


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """A function on all that is in nested lists, tuples and dictionaries."""
    if type(value) in (tuple, list):
        return type(value)(mapped(function, each) for each in value)
    if type(value) is dict:
        items = cast("dict[str, Any]", value).items()
        return {key: mapped(function, each) for key, each in items}
    return function(value)


def leaves(value: Any) -> Iterator[Any]:
    """All that is in nested lists and tuples."""
    if type(value) in (tuple, list):
        for each in value:
            yield from leaves(each)
    else:
        yield value


class Intercepting(TorchDispatchMode):
    """Torch's operators on this thread, and in backwards that begin on it, are answered by
    `answer`; what that calls itself goes to the interception around this one, if any, then to
    torch."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The operator's answer."""
        del types
        return self._answer(func, args, kwargs or {})
