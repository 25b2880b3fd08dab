"""Where each parameter of a unit is in the unit's flat buffer.

Views, gradients, master weights and moments of a unit are flat buffers of one layout: matrices
first (they decay), then vectors (norms and biases, which do not). What nobody updates is not in
them: it has a buffer of its own, of which there are views alone. Every parameter starts on a
multiple of `ALIGN` elements, so that no kernel meets a ragged edge, whoever owns which part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ratrain.describe.trained import Adapter, is_adapter
from ratrain.models.division import WHOLE, Division, cut_dim

ALIGN = 64


@dataclass(frozen=True)
class Parameter:
    """One tensor of a unit. `name` is the unit's own; `offset` counts elements of the buffer.

    Where a tensor group divides the unit, `shape` is that of this rank's part along dimension
    `cut`; None: the parameter is whole.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    cut: int | None = None
    division: Division = WHOLE
    trained: bool = True  # else it is in the unit's buffer of frozen ones

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def rows(self) -> int:
        """Of a vector its elements; of a stack those of all its matrices."""
        return prod(self.shape[:-1]) if len(self.shape) > 1 else self.elements

    @property
    def end(self) -> int:
        return self.offset + self.elements

    @property
    def adapts(self) -> bool:
        """Whether it is part of a low-rank adapter, and not of the model itself."""
        return is_adapter(self.name)

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the model's tensor, of which this may be a part."""
        if self.cut is None:
            return self.shape
        sizes = list(self.shape)
        sizes[self.cut] *= self.division.degree
        return tuple(sizes)

    @property
    def window(self) -> tuple[slice, ...]:
        """This part's place in the model's tensor, a slice a dimension."""
        return tuple(
            self.division.of(size) if dim == self.cut else slice(0, size)
            for dim, size in enumerate(self.whole_shape)
        )


@dataclass(frozen=True)
class UnitParameters:
    """All parameters of one unit that are trained, in the order of the buffer. `frozen`: of the
    buffer of those that are not. `adapters`: low-rank ones; what they give is times
    `adapter_scale`."""

    parameters: tuple[Parameter, ...]
    decay_end: int  # elements before this one decay, the others do not
    size: int  # elements of the buffer, a multiple of ALIGN
    frozen: UnitParameters | None = None
    adapters: tuple[Adapter, ...] = ()
    adapter_scale: float = 1.0
    packed: UnitParameters | None = None  # of a buffer of bytes in which these are held instead

    @property
    def every(self) -> tuple[Parameter, ...]:
        """All parameters of the unit, of both buffers."""
        return self.parameters + (self.frozen.parameters if self.frozen else ())

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        """Those of both buffers."""
        return {parameter.name: parameter for parameter in self.every}

    @cached_property
    def adapter_of(self) -> dict[str, Adapter]:
        """The adapters by their matrices' names."""
        return {adapter.module: adapter for adapter in self.adapters}

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


def lay_out(
    shapes: Iterable[tuple[str, tuple[int, ...]]],
    division: Division = WHOLE,
    *,
    trained: bool = True,
) -> UnitParameters:
    """The layout of parameters given by name and whole shape; matrices first, each in given order.
    `division`: that of one rank of a tensor group."""
    cut_shapes = [(name, *_part(name, shape, division)) for name, shape in shapes]
    placed: list[Parameter] = []
    offset, decay_end = 0, 0
    for decays in (True, False):
        for name, shape, cut in cut_shapes:
            if (len(shape) > 1) is decays:
                placed.append(Parameter(name, shape, offset, cut, division, trained))
                offset += aligned(prod(shape))
        if decays:
            decay_end = offset
    return UnitParameters(tuple(placed), decay_end, offset)


def _part(
    name: str, shape: tuple[int, ...], division: Division
) -> tuple[tuple[int, ...], int | None]:
    """The shape of one rank's part, and the dimension along which it is cut."""
    cut = cut_dim(name) if division.degree > 1 else None
    if cut is None:
        return shape, None
    sizes = list(shape)
    sizes[cut] //= division.degree
    return tuple(sizes), cut
