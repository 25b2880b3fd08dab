"""What is declared once, under a name and a number: lanes, kinds of op.

Columns have the numbers, code the objects: `Lane(5)` is the lane of that number, `Lane.REDUCE` that
of the name, and `for lane in Lane` goes over all in the order of their declaration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self, TypeVar

from ratrain.errors import ProgramError
from ratrain.plugins import load_plugins

T = TypeVar("T")


class _Class(type):
    """Of a class whose objects are declared: it knows them all."""

    def __init__(cls, *parts: Any) -> None:
        super().__init__(*parts)
        cls.known: dict[str, Any] = {}
        cls.numbered: list[Any] = []

    def __iter__(cls: type[T]) -> Iterator[T]:
        declared: Any = cls
        return iter(tuple(declared.numbered))

    def __len__(cls) -> int:
        return len(cls.numbered)


class Declared(int, metaclass=_Class):
    """One of them. What is declared of it are its attributes; the class says those that most have,
    or all must be given."""

    name: str

    def __new__(cls, number: int) -> Self:
        return cls.numbered[number]

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).named, (self.name,)

    @classmethod
    def declared(cls, noun: str, name: str, **facts: Any) -> Self:
        """A further one, of which `facts` are declared. `noun`: what it is called in messages."""
        if hasattr(cls, name):
            raise ProgramError(f"the {noun} {name} is declared twice", fix="choose another name")
        if unknown := facts.keys() - cls.__annotations__.keys():
            raise TypeError(f"{noun} {name}: nothing is called {', '.join(sorted(unknown))}")
        made = int.__new__(cls, len(cls))
        vars(made).update(facts, name=name)
        cls.numbered.append(made)
        cls.known[name] = made
        setattr(cls, name, made)
        return made

    @classmethod
    def named(cls, name: str) -> Self:
        """That of a name; a KeyError where there is none."""
        return cls.known[name]

    @classmethod
    def has(cls, name: str) -> bool:
        """Whether one has this name. A rank may read a word of a plugin's before anything else has
        asked for plugins."""
        if name not in cls.known:
            load_plugins()
        return name in cls.known

    def forget(self) -> None:
        """Takes the last declaration back: for tests, which must leave none behind."""
        if type(self).numbered[-1] is not self:
            raise ProgramError(f"{self.name} is not the last that was declared")
        type(self).numbered.pop()
        del type(self).known[self.name]
        delattr(type(self), self.name)
