"""A device whose every operator is compared: with fp64 on the CPU, from the same arguments."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ratrain.check.call import Call, on_host
from ratrain.check.compare import compare, unchanged
from ratrain.check.record import Record, Where, WhereOf
from ratrain.devices import Device, Mark, Memory, Stream
from ratrain.devices.device import DeclaredOp, Marks
from ratrain.devices.operators import Intercepting, rule_of, tensors_of

_aten = torch.ops.aten
_NOTHING = {
    _aten._local_scalar_dense.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten._copy_from.default,
}
"""What makes no values, or only tells them to the host."""


class Operators:
    """Compares the operators of one lane. `here`: the op that it does."""

    def __init__(self, record: Record, narrow_terms: int) -> None:
        self._record, self._narrow_terms = record, narrow_terms
        self.here = Where()

    def answer(self, operator: Any, args: Sequence[Any], further: dict[str, Any]) -> Any:
        """What the device makes of an operator; compared."""
        if not is_compared(operator, args):
            if _draws(operator, args):
                self._record.skip(str(operator))
            return operator(*args, **further)
        tensors = list(tensors_of(rule_of(operator), args, further))
        with _disable_current_modes():
            call = Call(operator, on_host(tuple(args)), on_host(dict(further)), self._narrow_terms)
        made = operator(*args, **further)
        with _disable_current_modes():
            self._compare(call, made, args, further, tensors)
        return made

    def _compare(
        self,
        call: Call,
        made: Any,
        args: Sequence[Any],
        further: dict[str, Any],
        tensors: list[tuple[bool, Tensor]],
    ) -> None:
        results: list[Tensor] = on_host(call.results(made, args, further))
        if not any(result.numel() for result in results):
            return
        difference = compare(call, results)
        if difference is None:
            self._record.skip(call.name)
            return
        before = [x for _, x in tensors_of(rule_of(call.operator), call.args, call.further)]
        written = {_memory(tensor) for writes, tensor in tensors if writes}
        free = [_memory(tensor) in written for _, tensor in tensors]
        wrote = not unchanged(before, [on_host(tensor) for _, tensor in tensors], free)
        self._record.add_call(call, difference, self.here, wrote=wrote, results=results)


def is_compared(operator: Any, args: Sequence[Any]) -> bool:
    """Whether an operator makes values, and the same ones each time."""
    makes_values = not rule_of(operator).views and operator not in _NOTHING
    is_of_shape = torch.Tag.inplace_view in operator.tags
    return makes_values and not is_of_shape and not _draws(operator, args)


def _draws(operator: Any, args: Sequence[Any]) -> bool:
    """Whether it draws random numbers; attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    names = rule_of(operator).names
    return dict(zip(names, args, strict=False)).get("dropout_p") != 0


def _memory(tensor: Tensor) -> int:
    """Which memory a tensor lies in."""
    hold = getattr(tensor, "hold", None)
    return id(hold.block) if hold is not None else tensor.untyped_storage().data_ptr()


class _CheckedStream:
    def __init__(self, stream: Stream, operators: Operators, device: Checked) -> None:
        self._stream, self._operators, self._device = stream, operators, device

    def begin(self, op: DeclaredOp, step: int, after: Marks, state: Callable[[int], str]) -> None:
        self._stream.begin(op, step, after, state)
        self._operators.here = self._device.where(op, step)

    def finish(self) -> Mark:
        return self._stream.finish()


class Checked:
    """A device, whose operators are compared on every lane."""

    def __init__(self, device: Device, rank: int = 0, folder: Path | None = None) -> None:
        self._device, self.rank = device, rank
        self.kind, self.place, self.own_memory = device.kind, device.place, device.own_memory
        self.words = f"{device.words}, each operator compared with the CPU in fp64"
        self.narrow_terms = device.narrow_terms
        self.record = Record(folder, device.kind)
        self.where: WhereOf = lambda op, step: Where(step + 1, op.word, rank=rank)

    own_memory: Memory | None

    @contextmanager
    def stream(self, lane: str) -> Generator[Stream]:
        """The stream of a lane, whose operators are compared."""
        operators = Operators(self.record, self.narrow_terms)
        with self._device.stream(lane) as stream, Intercepting(operators.answer):
            yield _CheckedStream(stream, operators, self)

    def mark(self) -> Mark:
        return self._device.mark()

    def name(self, value: object, words: str, /) -> None:
        self._device.name(value, words)

    def finish(self) -> None:
        self._device.finish()
