"""Tensors of a device whose work is put off, and what becomes of an operator on them.

An operator is the CPU's own, called later on the same memory: so it has the CPU's bits. What shape
its result has is found by calling it once on zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch

from ratrain.devices.deferred.clocks import Access
from ratrain.devices.deferred.memory import Hold, Pool
from ratrain.devices.deferred.queue import Queue
from ratrain.devices.operators import Rule, leaves, mapped, rule_of, tensors_of

NAME = "deferred"
_aten = torch.ops.aten
_EMPTY = {
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}
_ANSWERS = {_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default}
"""What the host waits for: numbers."""
_SIZED_BY_VALUES = {_aten.nonzero.default, _aten.masked_select.default}
_MOST_SHAPES = 20_000
Shape = tuple[torch.Size, tuple[int, ...], torch.dtype]


class DeferredTensor(Tensor):
    """`memory` is where its elements are; `hold` keeps them there."""

    memory: Tensor
    hold: Hold
    bounds: tuple[int, int]  # the bytes of its block that it lies in

    @staticmethod
    def __new__(cls, memory: Tensor, hold: Hold) -> DeferredTensor:
        tensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            memory.size(),
            strides=memory.stride(),
            storage_offset=memory.storage_offset(),
            dtype=memory.dtype,
            device=torch.device(NAME, 0),
        )
        tensor.memory, tensor.hold = memory, hold
        tensor.bounds = _bytes_of(memory)
        return tensor

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"DeferredTensor({tuple(self.shape)}, {self.dtype})"

    def data_ptr(self) -> int:
        return self.memory.data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("a tensor on deferred has no numpy array: copy it to host memory first")

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return current().call(func, args, kwargs or {})


class Operators:
    """Puts operators on tensors into lanes."""

    def __init__(self, queue: Queue, pool: Pool) -> None:
        self._queue, self._pool = queue, pool
        self._shapes: dict[Any, Any] = {}

    def empty(self, shape: Shape) -> DeferredTensor:
        """A new tensor, of nothing but NaN."""
        size, stride, dtype = shape
        elements = (
            1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0
        )
        hold = self._pool.take(elements * dtype.itemsize)
        memory = hold.block.memory.view(dtype).as_strided(size, stride)
        return DeferredTensor(memory, hold)

    def call(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What the dispatcher hands over."""
        rule = rule_of(operator)
        if rule.views:
            return self._view(operator, args, kwargs)
        if torch.Tag.inplace_view in operator.tags:
            return _reshape(operator, args, kwargs)
        if self._goes_to_host(operator, args, kwargs):
            return self._answer(operator, rule, args, kwargs)
        tensors = [t for _, t in tensors_of(rule, args, kwargs)]
        _require_same_device(operator, tensors, self._copies(operator))
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if rule.writes:
            return self._change(operator, rule, args, kwargs)
        if operator in _SIZED_BY_VALUES or (operator is _aten.index.Tensor and _has_mask(tensors)):
            return self._sized_by_values(operator, rule, args, kwargs)
        return self._make(operator, rule, args, kwargs)

    # ---- kinds of operators ---------------------------------------------------------------

    def _view(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Another way to look at the same memory: nothing is done."""
        hold = cast("DeferredTensor", args[0]).hold
        seen = operator(*mapped(_memory, args), **mapped(_memory, kwargs))
        return mapped(lambda x: DeferredTensor(x, hold) if isinstance(x, Tensor) else x, seen)

    def _answer(
        self, operator: Any, rule: Rule, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """What goes to the host: it waits for its own lane, and for no other."""
        self._touch(rule, args, kwargs, (), None)
        self._queue.mark().wait()
        answer = operator(*mapped(_memory, args), **mapped(_memory, kwargs))
        return args[0] if operator is _aten.copy_.default else answer

    def _change(
        self, operator: Any, rule: Rule, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Writes into tensors that are there."""
        later_args, later_kwargs = mapped(_later, args), mapped(_later, kwargs)
        self._touch(rule, args, kwargs, (), lambda: operator(*later_args, **later_kwargs))
        if not rule.returns:
            return None
        named = {**dict(zip(rule.names, args, strict=False)), **kwargs}
        written = [named[name] for name in rule.names if name in rule.writes]
        return written[0] if len(written) == 1 else tuple(written)

    def _make(self, operator: Any, rule: Rule, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Makes new tensors."""
        shapes = self._shapes_of(operator, args, kwargs)
        made = mapped(lambda x: self.empty(x) if isinstance(x, _Shape) else x, shapes)
        if operator in _EMPTY:
            return made
        new = [tensor for tensor in leaves(made) if isinstance(tensor, DeferredTensor)]
        memories = [tensor.memory for tensor in new]
        later_args, later_kwargs = mapped(_later, args), mapped(_later, kwargs)

        def work() -> None:
            results = operator(*later_args, **later_kwargs)
            tensors = [result for result in leaves(results) if isinstance(result, Tensor)]
            for memory, result in zip(memories, tensors, strict=True):
                memory.copy_(result)

        self._touch(rule, args, kwargs, new, work)
        return made

    def _sized_by_values(
        self, operator: Any, rule: Rule, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """The host waits: it must know how large the result is."""
        result = self._answer(operator, rule, args, kwargs)
        made = self.empty(_Shape(result.size(), result.stride(), result.dtype))
        memory = made.memory
        self._touch(rule, (), {}, (made,), lambda: memory.copy_(result))
        return made

    # ---- what they touch ------------------------------------------------------------------

    def _touch(
        self,
        rule: Rule,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        made: Sequence[DeferredTensor],
        work: Callable[[], object] | None,
    ) -> None:
        """Puts work into this thread's lane, and notes what it reads and writes."""
        queue = self._queue
        with queue.lock:
            lane, at = queue.here, queue.give(work)
            touched = list(tensors_of(rule, args, kwargs))
            for writes, tensor in [*touched, *((True, tensor) for tensor in made)]:
                if not isinstance(tensor, DeferredTensor) or not tensor.numel():
                    continue
                access = Access(lane, at, writes, *tensor.bounds, rule.word, lane.doing)
                found = tensor.hold.block.access(access)
                if found is not None:
                    queue.missing.append(found)

    # ---- shapes ---------------------------------------------------------------------------

    def _shapes_of(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What an operator returns, with shapes in place of tensors."""
        key = operator, _key(args), tuple((name, _key(value)) for name, value in kwargs.items())
        if key not in self._shapes:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            with torch.no_grad():
                tried = operator(*mapped(_zeros, args), **mapped(_zeros, kwargs))
            self._shapes[key] = mapped(_shape, tried)
        return self._shapes[key]

    @staticmethod
    def _copies(operator: Any) -> bool:
        return operator in (_aten.copy_.default, _aten._to_copy.default)

    @staticmethod
    def _goes_to_host(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        if operator is _aten.copy_.default:
            return not isinstance(args[0], DeferredTensor)
        if operator is _aten._to_copy.default:
            device = kwargs.get("device")
            return device is not None and torch.device(device).type == "cpu"
        return operator in _ANSWERS


class _Shape(tuple[torch.Size, tuple[int, ...], torch.dtype]):
    """Size, stride and dtype of a tensor."""

    __slots__ = ()

    def __new__(cls, size: torch.Size, stride: tuple[int, ...], dtype: torch.dtype) -> _Shape:
        return super().__new__(cls, (size, stride, dtype))


def _shape(x: Any) -> Any:
    return _Shape(x.size(), x.stride(), x.dtype) if isinstance(x, Tensor) else x


def _key(value: Any) -> Any:
    """What the shape of a result depends on; values of one type are told apart from others."""
    if isinstance(value, Tensor):
        return value.size(), value.stride(), value.dtype
    if type(value) in (tuple, list):
        return tuple(_key(each) for each in value)
    return type(value), value


def _memory(x: Any) -> Any:
    return x.memory if isinstance(x, DeferredTensor) else x


def _later(x: Any) -> Any:
    """An argument for later: host memory is read now."""
    if isinstance(x, DeferredTensor):
        return x.memory
    return x.clone() if isinstance(x, Tensor) else x


def _zeros(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype).zero_()


def _bytes_of(memory: Tensor) -> tuple[int, int]:
    """Where a tensor lies in its block."""
    extent, size = 1, memory.element_size()
    for length, stride in zip(memory.size(), memory.stride(), strict=True):
        extent += (int(length) - 1) * int(stride)
    low = int(memory.storage_offset()) * size
    return low, low + extent * size


def _has_mask(tensors: Sequence[Tensor]) -> bool:
    return any(tensor.dtype == torch.bool for tensor in tensors[1:])


def _require_same_device(operator: Any, tensors: Sequence[Tensor], copies: bool) -> None:
    """As on a GPU: of host memory only single numbers take part."""
    for tensor in tensors:
        if not copies and tensor.dim() and not isinstance(tensor, DeferredTensor):
            raise RuntimeError(
                f"{operator}: expected all tensors to be on the same device, but found {NAME}:0 "
                "and cpu"
            )


def _reshape(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Gives a tensor another shape in place: what was put off keeps the old one."""
    tensor = cast("DeferredTensor", args[0])
    tensor.memory = tensor.memory.detach()
    operator(tensor.memory, *args[1:], **kwargs)
    with no_dispatch():
        before = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            operator(*args, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)
    return tensor


_current: list[Operators] = []


def current() -> Operators:
    """Those of the device that was made last."""
    return _current[-1]


def use(operators: Operators) -> None:
    """New tensors are made by these from now on."""
    _current[:] = [operators]
