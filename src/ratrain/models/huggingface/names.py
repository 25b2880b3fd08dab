"""Where Hugging Face's files hold our parameters, as a model's family says it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ratrain.describe.family import Family, Packed
from ratrain.describe.huggingface import require_family
from ratrain.describe.model import ModelSpec
from ratrain.models.shapes import EMBEDDING, HEAD, unit_layout, unit_names

TABLE, LOGITS = "embedding.tokens", "head.logits"


@dataclass(frozen=True)
class Stored:
    """Where a parameter is stored: rows `first_row` and on of `tensor`, or of the transposed one.
    `period`: of every so many rows the first `run` after `first_row` are the parameter's."""

    tensor: str
    shape: tuple[int, ...]  # of the whole tensor, as the file has it
    first_row: int = 0
    transposed: bool = False
    run: int = 0
    period: int = 0

    def runs(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """(first row of the tensor, number of rows) of the parameter's rows begin .. end."""
        while begin < end:
            count = min(end - begin, self.run - begin % self.run) if self.run else end - begin
            beside = begin // self.run * self.period + begin % self.run if self.run else begin
            yield self.first_row + beside, count
            begin += count


@dataclass(frozen=True)
class FileTensor:
    """A tensor of a file: one parameter of a unit, or several."""

    name: str
    shape: tuple[int, ...]
    unit: str
    parameters: tuple[str, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class FileNames:
    """The names and forms that a model's parameters have in files."""

    spec: ModelSpec

    @cached_property
    def family(self) -> Family:
        """The model's; SpecError where no family has its pieces."""
        return require_family(self.spec)

    @property
    def embedding(self) -> str:
        """The tensor that a tied head is read from."""
        return f"{self.family.tensors[TABLE]}.weight"

    def place_of(self, unit: str, parameter: str, shape: tuple[int, ...]) -> Stored:
        """Where a whole parameter is. A tied head is read from the embedding."""
        if unit == HEAD and parameter == LOGITS and self.spec.tied_embeddings:
            unit, parameter = EMBEDDING, TABLE
        module, _, kind = parameter.rpartition(".")
        if kind not in ("weight", "bias"):
            module, kind = parameter, "weight"
        theirs = self.family.tensors[module]
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
        run = shape[0] // self.spec.heads
        return Stored(name, whole, at * run, run=run, period=len(rows) * run)

    def _rows(self, module: str) -> int:
        """Rows of one of a layer's matrices."""
        spec = self.spec
        mlp = module.startswith("mlp.")
        return spec.ffn if mlp else spec.query_hidden if module == "attention.q" else spec.kv_hidden

    def tensors(self) -> list[FileTensor]:
        """The tensors that a model's files hold, in the order of the forward pass."""
        tensors: dict[str, FileTensor] = {}
        for unit in unit_names(self.spec):
            for parameter in unit_layout(self.spec, unit).parameters:
                place = self.place_of(unit, parameter.name, parameter.shape)
                before = tensors.get(place.tensor)
                if before is None:
                    names = (parameter.name,)
                elif before.unit == unit:
                    names = (*before.parameters, parameter.name)
                else:
                    continue  # a tied head: the embedding's tensor is used for it
                tensors[place.tensor] = FileTensor(place.tensor, place.shape, unit, names)
        return list(tensors.values())
