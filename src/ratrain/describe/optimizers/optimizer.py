"""What an optimizer declares, and the registry of those that are known.

An optimizer is one file: its keys of [train], the states that it keeps beside the master weights,
how they lie in memory, its update, and what that costs. All else follows from the declaration:
the bill and the proof, prices, checkpoints, resuming, export. A file of your own may declare one
(docs/how-to/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING, Any, Protocol

from ratrain.describe.saved import Saved, declare_saved
from ratrain.errors import SpecError
from ratrain.plugins import Registry

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Matrix:
    """A parameter of a unit: a matrix, or a vector. `offset` counts from the first element of the
    run that it is part of."""

    name: str
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def run(self) -> slice:
        return slice(self.offset, self.offset + self.elements)


def matrices_of_stack(name: str, shape: tuple[int, ...], offset: int = 0) -> list[Matrix]:
    """A parameter as optimizers see it: of a stack each matrix by itself."""
    if len(shape) < 3:
        return [Matrix(name, shape, offset)]
    size = prod(shape[1:])
    return [Matrix(name, shape[1:], offset + number * size) for number in range(shape[0])]


class Held(Protocol):
    """A state of a run of a unit's elements, as its optimizer keeps it in memory. To others (a
    checkpoint, a mean over replicas) it is one fp32 number an element."""

    def __getitem__(self, run: slice, /) -> Held:
        """The same of a part of the run, on the same memory."""
        ...

    def values(self) -> Tensor:
        """fp32, one an element: the memory itself, or made from it."""
        ...

    def take(self, values: Tensor) -> None:
        """Keeps these values."""
        ...


@dataclass(frozen=True)
class Plain:
    """A state that is kept as it is: one fp32 number an element."""

    tensor: Tensor

    def __getitem__(self, run: slice) -> Plain:
        return Plain(self.tensor[run])

    def values(self) -> Tensor:
        return self.tensor

    def take(self, values: Tensor) -> None:
        if values.data_ptr() != self.tensor.data_ptr():
            self.tensor.copy_(values)

    @staticmethod
    def of(values: Tensor, _parameters: Sequence[Matrix]) -> Plain:
        return Plain(values)


@dataclass(frozen=True)
class State:
    """A state that an optimizer keeps. `name`: in checkpoints. `bytes_of`: of a parameter's, where
    that is not so many an element. `hold`: makes it from fp32 values of a run, and the parameters
    in that; runs begin and end on multiples of 64 elements."""

    name: str
    bytes_per_element: float = 4.0
    bytes_of: Callable[[Matrix], int] | None = None
    hold: Callable[[Tensor, Sequence[Matrix]], Held] = Plain.of

    def size_bytes(self, elements: int, parameters: Sequence[Matrix]) -> int:
        """Of a unit: `elements` of them, in these parameters where they are whole."""
        if self.bytes_of is None:
            return ceil(self.bytes_per_element * elements)
        return sum(map(self.bytes_of, parameters))


@dataclass(frozen=True)
class Step:
    """What an update follows besides weights, gradient and states."""

    rate: float  # the learning rate
    updates: int  # done before this one
    weight_decay: float  # of these elements
    name: str = ""  # of the parameter, of an optimizer that takes whole ones


Update = Callable[["Tensor", "Tensor", Sequence[Any], Any, Step], None]
"""(fp32 weights, fp32 gradient, the states in their order, the optimizer's keys, step): changes
weights and states in place, and may overwrite the gradient. It is called for pieces of any size, or
where `whole` for one parameter in its shape."""


@dataclass(frozen=True)
class Optimizer:
    """An optimizer's declaration. `keys`: a frozen dataclass of its own keys of [train]. `whole`:
    it must see whole matrices, which no sharding and no tensor group may divide. `moved_bytes`: of
    a parameter, read and written in an update. `copies`: fp32 tensors of a piece's size that an
    update makes beside the widened gradient. `flops`: of a parameter's update, where they count."""

    name: str
    doc: str
    keys: type[Any]
    states: tuple[State, ...]
    update: Update
    moved_bytes: float
    whole: bool = False
    copies: int = 0
    flops: Callable[[Matrix], float] | None = None

    def state_bytes(self, elements: int, parameters: Sequence[Matrix]) -> int:
        """Its states of a unit, besides the master weights."""
        return sum(state.size_bytes(elements, parameters) for state in self.states)

    def update_flops(self, parameters: Sequence[Matrix]) -> float:
        return sum(map(self.flops, parameters)) if self.flops else 0.0

    @property
    def saved_bytes(self) -> int:
        """Of a parameter in a checkpoint, whatever the dtype: fp32 weight and states."""
        return 4 * (1 + len(self.states))


USUAL_OPTIMIZER = "adamw"
"""What a job without [train] optimizer has, and a checkpoint that names none."""
OPTIMIZERS: Registry[Optimizer] = Registry("optimizer")


def declare_optimizer(optimizer: Optimizer) -> None:
    """Makes it known by its name, and its states to checkpoints by theirs."""
    for state in optimizer.states:
        declare_saved(Saved(state.name))
    OPTIMIZERS.declare(optimizer.name, optimizer)


def optimizer_named(name: str) -> Optimizer:
    """That of [train] optimizer; a name that is not known is a SpecError at that key."""
    if name not in OPTIMIZERS:
        raise SpecError(
            f"there is no optimizer {name!r}",
            place="optimizer",
            fix=f"use one of {', '.join(OPTIMIZERS)}",
        )
    return OPTIMIZERS[name]
