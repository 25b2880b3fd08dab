"""Where each parameter of a unit lies in the unit's one flat buffer.

Views, gradients, master weights and moments of a unit are flat buffers of one layout: matrices
first (they decay), then vectors (norms and biases, which do not). Every parameter starts on a
multiple of `ALIGN` elements, so that no kernel meets a ragged edge, whoever owns which part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

ALIGN = 64


@dataclass(frozen=True)
class Parameter:
    """One tensor of a unit. `name` is the unit's own; `offset` counts elements of the buffer."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def end(self) -> int:
        return self.offset + self.elements


@dataclass(frozen=True)
class UnitParameters:
    """All parameters of one unit, in the order of the buffer."""

    parameters: tuple[Parameter, ...]
    decay_end: int  # elements before this one decay, the others do not
    size: int  # elements of the buffer, a multiple of ALIGN

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in self.parameters}

    def overlaps(self, begin: int, end: int) -> Iterator[tuple[Parameter, int, int]]:
        """(parameter, low, high) of each one that has elements low .. high in begin .. end of
        the buffer; low and high count from the parameter's own first element."""
        for parameter in self.parameters:
            low = max(begin, parameter.offset) - parameter.offset
            high = min(end, parameter.end) - parameter.offset
            if low < high:
                yield parameter, low, high

    def padded(self, owners: int) -> int:
        """Elements of a buffer that `owners` ranks share evenly, in multiples of ALIGN each."""
        return aligned(self.size, ALIGN * owners)


def aligned(elements: int, to: int = ALIGN) -> int:
    """The next multiple of `to`."""
    return -(-elements // to) * to


def lay_out(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> UnitParameters:
    """The layout of parameters given by name and shape; matrices first, each in given order."""
    named = list(shapes)
    placed: list[Parameter] = []
    offset, decay_end = 0, 0
    for decays in (True, False):
        for name, shape in named:
            if (len(shape) > 1) is decays:
                placed.append(Parameter(name, shape, offset))
                offset += aligned(prod(shape))
        if decays:
            decay_end = offset
    return UnitParameters(tuple(placed), decay_end, offset)
