"""States of whole parameters: each parameter of a unit has a piece of memory of its own form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ratrain.describe.optimizers.optimizer import Held, Matrix

if TYPE_CHECKING:
    from torch import Tensor


class Packed(Protocol):
    """A parameter's state in a form of its own."""

    def unpack(self, out: Tensor) -> None:
        """Writes it over zeros, one fp32 number an element of the parameter."""
        ...

    def pack(self, values: Tensor) -> None:
        """Keeps what `unpack` wrote."""
        ...


@dataclass(frozen=True)
class ByParameter:
    """A state of a run of a unit's elements, parameter by parameter."""

    elements: int
    pieces: tuple[tuple[Matrix, Packed], ...]
    like: Tensor  # empty, of the device

    def __getitem__(self, run: slice) -> Held:
        piece = next(packed for matrix, packed in self.pieces if matrix.run == run)
        return Whole(run.stop - run.start, piece, self.like)

    def values(self) -> Tensor:
        values = self.like.new_zeros(self.elements)
        for matrix, packed in self.pieces:
            packed.unpack(values[matrix.run])
        return values

    def take(self, values: Tensor) -> None:
        for matrix, packed in self.pieces:
            packed.pack(values[matrix.run])


@dataclass(frozen=True)
class Whole:
    """The state of one parameter."""

    elements: int
    packed: Packed
    like: Tensor

    def __getitem__(self, run: slice) -> Held:
        assert run == slice(0, self.elements), "a whole parameter is not divided"
        return self

    def values(self) -> Tensor:
        values = self.like.new_zeros(self.elements)
        self.packed.unpack(values)
        return values

    def take(self, values: Tensor) -> None:
        self.packed.pack(values)


def by_parameter(
    make: Callable[[Matrix, Tensor], Packed],
) -> Callable[[Tensor, Sequence[Matrix]], ByParameter]:
    """A `State.hold` that makes each parameter's piece from its elements."""

    def hold(values: Tensor, parameters: Sequence[Matrix]) -> ByParameter:
        pieces = tuple((matrix, make(matrix, values[matrix.run])) for matrix in parameters)
        return ByParameter(len(values), pieces, values.new_empty(0))

    return hold
