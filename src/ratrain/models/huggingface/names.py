"""Where Hugging Face's files hold our parameters, as a model's family says it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from ratrain.describe.family import Family, Numbered, Packed
from ratrain.describe.huggingface import require_family
from ratrain.describe.model import ModelSpec
from ratrain.describe.own import name_in_files
from ratrain.describe.parameters import LOGITS
from ratrain.models.parameters import Parameter
from ratrain.models.shapes import EMBEDDING, HEAD, unit_layout, unit_names

TABLE = "embedding.tokens"


@dataclass(frozen=True)
class Stored:
    """Where a matrix or a vector is stored: rows `first_row` and on of `tensor`, or of the
    transposed one. `period`: of every so many rows the first `run` after `first_row` are its.
    `of_stack`: which matrix of a tensor that is a stack."""

    tensor: str
    shape: tuple[int, ...]  # of the whole tensor, as the file has it
    first_row: int = 0
    transposed: bool = False
    run: int = 0
    period: int = 0
    of_stack: int | None = None

    def of(self, rows: slice) -> tuple[int | slice, ...]:
        """The index of rows of the tensor."""
        return (rows,) if self.of_stack is None else (self.of_stack, rows)

    def runs(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """(first row of the tensor, number of rows) of the parameter's rows begin .. end."""
        while begin < end:
            count = min(end - begin, self.run - begin % self.run) if self.run else end - begin
            beside = begin // self.run * self.period + begin % self.run if self.run else begin
            yield self.first_row + beside, count
            begin += count


@dataclass(frozen=True)
class Held:
    """A parameter, or one matrix of a stack, and where it is stored."""

    parameter: Parameter
    place: Stored


@dataclass(frozen=True)
class FileTensor:
    """A tensor of a file: what it holds of a unit."""

    name: str
    shape: tuple[int, ...]
    unit: str
    parts: tuple[Held, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class FileNames:
    """The names and forms that a model's parameters have in files. `also`: those that its family
    says other makers' files have."""

    spec: ModelSpec
    also: bool = False

    @cached_property
    def family(self) -> Family:
        """The model's; SpecError where no family has its pieces."""
        return require_family(self.spec)

    @property
    def embedding(self) -> str:
        """The tensor that a tied head is read from; "": there is none."""
        if self.spec.own:
            return ""
        return f"{self.family.tensors[TABLE]}.weight"

    def parts_of(self, unit: str, parameter: Parameter) -> Iterator[Held]:
        """Where a parameter is that is here whole or in part: of a stack, matrix by matrix."""
        shape = parameter.whole_shape
        if self.spec.own or len(shape) < 3:
            yield Held(parameter, self.place_of(unit, parameter.name, shape))
            return
        count, first = parameter.shape[0], parameter.window[0].start
        size = parameter.elements // count
        for number in range(count):
            matrix = replace(
                parameter, shape=shape[1:], offset=parameter.offset + number * size, cut=None
            )
            yield Held(matrix, self.place_of(unit, parameter.name, shape, first + number))

    def place_of(
        self, unit: str, parameter: str, shape: tuple[int, ...], number: int = 0
    ) -> Stored:
        """Where a whole parameter is, or matrix `number` of a stack. A tied head is read from the
        embedding."""
        if self.spec.own:
            return Stored(name_in_files(unit, parameter), shape)
        if unit == HEAD and parameter == LOGITS and self.spec.tied_embeddings:
            unit, parameter = EMBEDDING, TABLE
        module, _, kind = parameter.rpartition(".")
        if kind not in ("weight", "bias"):
            module, kind = parameter, "weight"
        theirs = self.family.tensors[module]
        if self.also:
            theirs = self.family.also.get(module, theirs)
        if isinstance(theirs, Numbered):
            return Stored(f"{theirs.tensor.format(unit, number)}.{kind}", shape[1:])
        if len(shape) > 2:
            return _in_stack(theirs, unit, module, shape, number)
        if isinstance(theirs, Packed):
            return self._packed(theirs, unit, module, kind, shape)
        name = f"{theirs.format(unit)}.{kind}"
        transposed = kind == "weight" and module in self.family.transposed
        return Stored(name, shape[::-1] if transposed else shape, transposed=transposed)

    def _packed(
        self, packed: Packed, unit: str, module: str, kind: str, shape: tuple[int, ...]
    ) -> Stored:
        rows = [self._rows(part) for part in packed.of]
        at = packed.of.index(module)
        whole = (sum(rows), *shape[1:])
        transposed = kind == "weight" and module in self.family.transposed
        name = f"{packed.tensor.format(unit)}.{kind}"
        if not packed.by_head:
            stored_shape = whole[::-1] if transposed else whole
            return Stored(name, stored_shape, sum(rows[:at]), transposed)
        run, *before = (count // self.spec.kv_heads for count in (shape[0], *rows[:at]))
        period = whole[0] // self.spec.kv_heads
        return Stored(name, whole, sum(before), run=run, period=period)

    def _rows(self, module: str) -> int:
        """Rows of one of a layer's matrices."""
        spec = self.spec
        if module.startswith("mlp."):
            return spec.dense_ffn
        return spec.query_hidden if module == "attention.q" else spec.kv_hidden

    def tensors(self) -> list[FileTensor]:
        """The tensors that a model's files hold, in the order of the forward pass."""
        tensors: dict[str, FileTensor] = {}
        for unit in unit_names(self.spec):
            parameters = unit_layout(self.spec, unit).parameters
            for held in (held for each in parameters for held in self.parts_of(unit, each)):
                name, shape = held.place.tensor, held.place.shape
                before = tensors.get(name)
                if before is None:
                    tensors[name] = FileTensor(name, shape, unit, (held,))
                elif before.unit == unit:
                    tensors[name] = replace(before, parts=(*before.parts, held))
                # else a tied head: the embedding's tensor is used for it
        return list(tensors.values())


def _in_stack(
    theirs: str | Packed, unit: str, module: str, shape: tuple[int, ...], number: int
) -> Stored:
    """A matrix of a tensor that holds a stack, of which each may hold several of ours."""
    count, rows, width = shape
    if isinstance(theirs, str):
        return Stored(theirs.format(unit), shape, of_stack=number)
    whole = (count, len(theirs.of) * rows, width)
    at = theirs.of.index(module) * rows
    return Stored(theirs.tensor.format(unit), whole, at, of_stack=number)
