"""A unit's weights as its functions read them, and the place where their gradients add up.

Gradients do not pass through autograd's leaves: each function with weights adds its weight
gradient to the buffer that is attached at that moment, in one product. So the executor decides
where a gradient is stored, backward can be split (input gradient now, weight gradient later), and a
view may live in another buffer in backward than in forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from ratrain.models.functions.chunks import CPU_KERNELS, ON_CPU, chunk_elements
from ratrain.models.functions.rows import Rows
from ratrain.models.packed import Packed
from ratrain.models.parameters import Parameter, UnitParameters

_ADD_WIDE = torch.ops.aten.addmm.dtype_out
_ROWS = 8
"""Products of a multiple of this many rows have the bits of the whole in all libraries seen."""


T = TypeVar("T")
RowsOf = Callable[[slice], Tensor]
"""Some rows of a matrix."""


class Sink(Protocol):
    """Takes a unit's gradient parameter by parameter, each once in a backward."""

    def places(self, parameter: Parameter) -> Iterator[tuple[slice, Tensor]]:
        """A parameter's rows (a vector's elements; of a stack those of all its matrices), some at a
        time, and for each a place of zeros to add their gradient to. They are complete when the
        next are asked for."""
        ...


class Windows:
    """A unit's parameters in a flat buffer, and those that nobody updates in another, each cut out
    when it is first read. Of what is held in 8 bits, in a buffer of bytes, each read makes a
    copy."""

    def __init__(
        self, layout: UnitParameters, flat: Tensor | None, frozen: Tensor | None = None
    ) -> None:
        self._layout = layout
        self.flat, self._frozen, self._packed = flat, frozen, None
        if frozen is not None and frozen.dtype == torch.uint8:
            assert layout.frozen is not None
            self._packed = Packed(layout.frozen, frozen)
        self._known: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self.window(self._layout.by_name[name])

    def window(self, parameter: Parameter) -> Tensor:
        """A parameter of the layout, or a stack of them."""
        known = self._known.get(parameter.name)
        if known is None and self._packed is not None and not parameter.trained:
            return self._read(self._packed, parameter)
        if known is None:
            flat = self.flat if parameter.trained else self._frozen
            assert flat is not None, f"{parameter.name} is read where nothing is attached"
            known = flat[parameter.offset : parameter.end].view(parameter.shape)
            self._known[parameter.name] = known
        return known

    def of_stack(self, name: str, number: int) -> Tensor:
        """One matrix of a stack."""
        parameter = self._layout.by_name[name]
        if self._packed is None or parameter.trained:
            return self.window(parameter)[number]
        return self._packed.read(parameter, self._dtype, number)

    def frozen_as_computed(self) -> Tensor | None:
        """The buffer of what nobody updates in the dtype of compute."""
        if self._packed is None or self._layout.frozen is None:
            return self._frozen
        return self._packed.every(self._layout.frozen, self._dtype)

    def _read(self, packed: Packed, parameter: Parameter) -> Tensor:
        """Of what is held otherwise than it is computed; vectors are kept, matrices are large."""
        made = packed.read(parameter, self._dtype)
        if len(parameter.shape) == 1:
            self._known[parameter.name] = made
        return made

    @property
    def _dtype(self) -> torch.dtype:
        assert self.flat is not None, "the dtype of compute is that of what is updated"
        return self.flat.dtype


def stack_of(layout: UnitParameters, names: tuple[str, ...]) -> Parameter | None:
    """Matrices of a layout as one; None: they do not lie one below another, or have biases."""
    parts = [layout.by_name[name] for name in names]
    if any(name.removesuffix("weight") + "bias" in layout.by_name for name in names):
        return None
    held_otherwise = layout.frozen is not None and layout.frozen.packed is not None
    if len({part.trained for part in parts}) > 1 or (held_otherwise and not parts[0].trained):
        return None
    if any(after.offset != part.end for part, after in pairwise(parts)):
        return None
    widths = {part.shape[1] for part in parts}
    if len(widths) > 1:
        return None
    rows = sum(part.shape[0] for part in parts)
    first = parts[0]
    return replace(first, name="+".join(names), shape=(rows, widths.pop()))


class Weights:
    """Named windows on a flat view, and a sink for gradients."""

    def __init__(self, layout: UnitParameters) -> None:
        self.layout = layout
        self._frozen: Tensor | None = None
        self._view = Windows(layout, None)
        self._gradient = Windows(layout, None)
        self._stacks: dict[tuple[str, ...], Parameter | None] = {}
        self._sink: Sink | None = None
        self._deferred: list[Callable[[], None]] | None = None

    def attach_view(self, flat: Tensor | None) -> None:
        """Weights are read from `flat` from now on; None: they are not read for a while."""
        self._view = Windows(self.layout, flat, self._frozen)

    def attach_frozen(self, flat: Tensor | None) -> None:
        """The same for weights that nobody updates, in their dtype or as bytes. What is attached as
        a view stays."""
        self._frozen = flat
        self._view = Windows(self.layout, self._view.flat, flat)

    def attach_gradient(self, flat: Tensor | None) -> None:
        """Gradients are added to `flat` from now on; None: there is no place for them."""
        self._gradient = Windows(self.layout, flat)

    def attach_sink(self, sink: Sink | None) -> None:
        """Gradients go to a sink from now on; None: to what is attached as one whole."""
        self._sink = sink

    @property
    def flats(self) -> tuple[Tensor | None, Tensor | None]:
        """The view that is attached, and the buffer of weights that nobody updates."""
        return self._view.flat, self._frozen

    def frozen_as_computed(self) -> Tensor | None:
        """The buffer of weights that nobody updates in the dtype of compute."""
        return self._view.frozen_as_computed()

    @property
    def whole_gradient(self) -> Tensor | None:
        """Where gradients are added at once as one whole; None: they go elsewhere, or later."""
        return self._gradient.flat if self._sink is None and self._deferred is None else None

    def __getitem__(self, name: str) -> Tensor:
        return self._view[name]

    def of_stack(self, name: str, number: int) -> Tensor:
        """One matrix of a stack."""
        return self._view.of_stack(name, number)

    def trains(self, name: str) -> bool:
        """Whether a parameter's gradient is wanted."""
        return self.layout.by_name[name].trained

    def stacked(self, names: tuple[str, ...]) -> Tensor | None:
        """Matrices without biases as one, where they lie one below another."""
        whole = self._stack(names)
        return None if whole is None else self._view.window(whole)

    def add_product(
        self, name: str, grad_output: Rows, inputs: Rows, row_scale: Tensor | None = None
    ) -> None:
        """gradient += grad_output^T inputs, of matrices with a row a token. With `row_scale`, then
        gradient[i] += row_scale[i] weight[i], of the weight as it is now, even if kept for later.
        What is kept are the own rows: all of them are gathered again when the time has come.
        """
        if not self.trains(name):
            return
        more = None if row_scale is None else self._scaled_rows(name, row_scale)
        self.now_or_later(lambda: self._product(name, grad_output, inputs, more))

    def add_stacked(self, names: tuple[str, ...], grad_output: Tensor, inputs: Rows) -> None:
        """The same for matrices that are `stacked`; `grad_output` has the columns of the first,
        then those of the next."""
        if not self.trains(names[0]):
            return
        self.now_or_later(lambda: self._stacked_product(names, grad_output, inputs))

    def add_stack(
        self, name: str, given: Mapping[int, T], factors: Callable[[T], tuple[Tensor, Tensor]]
    ) -> None:
        """The same for a stack of matrices, by their numbers in it: `factors` gives the output's
        gradient and the inputs of one of them when its turn comes. Others' gradient is zero."""
        if not self.trains(name):
            return
        self.now_or_later(lambda: self._stack_of_products(name, given, factors))

    def add(self, name: str, gradient: Tensor) -> None:
        """gradient += a whole parameter's gradient."""
        if not self.trains(name):
            return
        self.now_or_later(lambda: self._sum(name, gradient))

    def add_rows(self, name: str, rows: Tensor, gradient: Tensor) -> None:
        """gradient[rows[i]] += gradient[i]: an embedding's."""
        if not self.trains(name):
            return
        self.now_or_later(lambda: self._rows(name, rows, gradient))

    def defer(self) -> list[Callable[[], None]]:
        """Keeps weight gradients for later; the list returned is what `play` takes."""
        self._deferred = []
        return self._deferred

    def stop_deferring(self) -> None:
        """Weight gradients are added at once again."""
        self._deferred = None

    @staticmethod
    def play(deferred: list[Callable[[], None]]) -> None:
        """Adds the weight gradients kept, in the order in which they were made, and lets go of
        what each kept."""
        deferred.reverse()
        while deferred:
            deferred.pop()()

    def now_or_later(self, addition: Callable[[], None]) -> None:
        """Makes an addition at once, or keeps it while additions are kept."""
        if self._deferred is None:
            addition()
        else:
            self._deferred.append(addition)

    def _scaled_rows(self, name: str, scale: Tensor) -> RowsOf:
        weight = self._view[name]

        def scaled(rows: slice) -> Tensor:
            return (weight[rows] * scale[rows].unsqueeze(1)).to(weight.dtype)

        if self._deferred is None:
            return scaled
        kept = scaled(slice(None))
        return lambda rows: kept[rows]

    def _places(self, name: str) -> Iterator[tuple[slice, Tensor]]:
        """Rows of a parameter, and where their gradient is added: all of them at once, or as the
        sink has room for them."""
        if self._sink is None:
            yield slice(None), self._gradient[name]
        else:
            yield from self._sink.places(self.layout.by_name[name])

    def _product(self, name: str, grad_output: Rows, inputs: Rows, more: RowsOf | None) -> None:
        gradients, values = grad_output.all(), inputs.all()
        for rows, into in self._places(name):
            _add_product(into, gradients[:, rows], values)
            if more is None:
                continue
            for part in _row_chunks(into):
                first, last = (rows.start or 0) + part.start, (rows.start or 0) + part.stop
                into[part].add_(more(slice(first, last)))

    def _stack_of_products(
        self, name: str, given: Mapping[int, T], factors: Callable[[T], tuple[Tensor, Tensor]]
    ) -> None:
        height = self.layout.by_name[name].shape[1]
        for rows, into in self._places(name):
            flat, begin = into.view(-1, into.shape[-1]), rows.start or 0
            end = begin + len(flat)
            for number in range(begin // height, -(-end // height)):
                if number not in given:
                    continue
                low, high = max(begin, number * height), min(end, (number + 1) * height)
                gradients, values = factors(given[number])
                of_matrix = gradients[:, low - number * height : high - number * height]
                _add_product(flat[low - begin : high - begin], of_matrix, values)

    def _stacked_product(self, names: tuple[str, ...], grad_output: Tensor, inputs: Rows) -> None:
        whole = self._stack(names)
        assert whole is not None
        if self._sink is None:
            _add_product(self._gradient.window(whole), grad_output, inputs.all())
            return
        sizes = [self.layout.by_name[name].shape[0] for name in names]
        for name, part in zip(names, grad_output.split(sizes, 1), strict=True):
            self._product(name, Rows(part), inputs, None)

    def _stack(self, names: tuple[str, ...]) -> Parameter | None:
        if names not in self._stacks:
            self._stacks[names] = stack_of(self.layout, names)
        return self._stacks[names]

    def _sum(self, name: str, gradient: Tensor) -> None:
        for rows, into in self._places(name):
            given = gradient if into.dim() == gradient.dim() else gradient.flatten(0, -2)
            into.add_(given[rows])

    def _rows(self, name: str, rows: Tensor, gradient: Tensor) -> None:
        if self._sink is None:
            _add_rows(self._gradient[name], rows, gradient)
            return
        for place, into in self._places(name):
            for part in _row_chunks(gradient):
                here = (rows[part] >= place.start) & (rows[part] < place.stop)
                _add_rows(into, rows[part][here] - place.start, gradient[part][here])


def _add_product(into: Tensor, grad_output: Tensor, inputs: Tensor) -> None:
    """into += grad_output^T inputs."""
    if into.dtype == grad_output.dtype:
        torch.addmm(into, grad_output.t(), inputs, out=into)
        return
    if into.device.type == "cuda":  # 16-bit products that add up in fp32 as they are made
        _ADD_WIDE(into, grad_output.t(), inputs, into.dtype, out=into)
        return
    for rows in _row_chunks(into):
        into[rows].add_(grad_output[:, rows].t() @ inputs)


def _add_rows(into: Tensor, rows: Tensor, gradient: Tensor) -> None:
    """into[rows[i]] += gradient[i]."""
    whole = gradient.dtype == into.dtype
    for part in [slice(None)] if whole else _row_chunks(gradient):
        wide = gradient[part].to(into.dtype)
        if into.device.type in CPU_KERNELS:
            into.index_add_(0, rows[part], wide)
        else:  # sorts the rows first: the same order of sums each time, where index_add_ races
            into.index_put_((rows[part],), wide, accumulate=True)


def rows_at_once(width: int, elements: int = ON_CPU) -> int:
    """Rows of so many elements that make at most `elements`, or one row. Left out: as on CPUs, by
    which ranks on all devices cut buckets."""
    rows = max(1, elements // width)
    return rows if rows < _ROWS else rows // _ROWS * _ROWS


def _row_chunks(matrix: Tensor) -> list[slice]:
    """Slices of rows of at most as many elements as are worked on at once, or of one row."""
    step, rows = rows_at_once(matrix.shape[1], chunk_elements(matrix)), matrix.shape[0]
    return [slice(begin, min(begin + step, rows)) for begin in range(0, rows, step)]
