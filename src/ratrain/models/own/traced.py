"""What a user's module takes, traced: every operator of its forward and backward is seen with the
sizes of its tensors, and nothing is computed.

Memory is what operators return, as long as something holds it. What a kernel needs inside is not
seen: of convolutions as much again as they read and write is counted (libraries bring them into
forms of their own), of all others what they read that is not contiguous.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from ratrain.describe.model import ModelSpec
from ratrain.describe.own import UnitCost, Work
from ratrain.describe.own_units import FIRST, LAST
from ratrain.errors import SpecError
from ratrain.models.functions.dropout import Drawn
from ratrain.models.graphs import gradient_of_leaf, graph_of
from ratrain.models.micro_batch import MicroBatch
from ratrain.models.own.modules import KINDS, bare_module
from ratrain.models.own.unit import own_unit
from ratrain.models.shapes import unit_layout
from ratrain.models.weights import Weights

_UNITS = {"embedding": FIRST, "layer": "0", "head": LAST}
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_ATTENTION = "scaled_dot_product"


def traced_cost(
    spec: ModelSpec, kind: str, sequence: int, micro_batch: int, dtype: str
) -> UnitCost:
    """The `UnitCost` of a unit of a user's model."""
    try:
        with FakeTensorMode():
            return _traced(spec, kind, sequence, micro_batch, _DTYPES[dtype])
    except SpecError:
        raise
    except Exception as error:  # whatever a user's module raises
        raise SpecError(
            f"cannot be traced for {micro_batch} x {sequence} tokens in {dtype}: "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}",
            place=f"model {spec.name}, {KINDS[kind]}",
            fix="let no shape and no choice depend on what a tensor holds, and make tensors on the "
            "device and in the dtype of the input",
        ) from error


def _traced(
    spec: ModelSpec, kind: str, sequence: int, micro_batch: int, dtype: torch.dtype
) -> UnitCost:
    layout = unit_layout(spec.base, _UNITS[kind])
    weights, module = Weights(layout), bare_module(spec.name, kind, torch.device("cpu"), dtype)
    unit = replace(own_unit(spec, _UNITS[kind], layout), made=module)
    weights.attach_view(torch.empty(layout.size, dtype=dtype))
    weights.attach_gradient(torch.empty(layout.size))
    tokens = torch.zeros((micro_batch, sequence), dtype=torch.int64)
    batch = MicroBatch(tokens, tokens, drawn=Drawn(0.0, 0, 0, 0))
    shape = (0,) if kind == "embedding" else (micro_batch, sequence, spec.hidden)
    leaf = torch.empty(shape, dtype=dtype, requires_grad=True)
    with torch.no_grad():
        unit.forward(weights, leaf, batch)  # what a module makes once is there from now on
        alone = _Seen()
        with alone:
            made = unit.forward(weights, leaf, batch)
    passed = made.untyped_storage().nbytes()
    forward = _Seen()
    with forward:
        output = unit.forward(weights, leaf, batch)
        graph = graph_of(output, leaf)
        seed = torch.empty_like(output)
        del output, made
    kept = forward.live - seed.untyped_storage().nbytes()
    backward = _Seen()
    with backward:
        of_leaf = gradient_of_leaf(graph, seed)
        handed = 0 if of_leaf is None else of_leaf.untyped_storage().nbytes()
    weight_gradients = sum(each.elements for each in layout.parameters) * dtype.itemsize
    scratch = max(
        alone.peak - passed + alone.inside,
        forward.peak - kept - passed + forward.inside,
        # What backward keeps was allocated before: none of it is gone before its operator.
        backward.peak - handed + backward.inside,
    )
    return UnitCost(
        # Between the halves of backward weight gradients wait in the place of what was kept.
        kept_bytes=max(kept, weight_gradients),
        scratch_bytes=max(0, scratch) + weight_gradients,
        forward=forward.work(dtype),
        backward=backward.work(dtype),
    )


class _Seen(TorchDispatchMode):
    """Counts what operators return, and how long it lives; their FLOPs and their traffic."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.inside = 0
        self._moved_bytes, self._kernels = 0, 0
        self._flops = {"gemm": 0.0, "attention": 0.0}
        self._known: set[int] = set()

    def work(self, dtype: torch.dtype) -> Work:
        """What was seen; traffic as of elements of two bytes."""
        moved = self._moved_bytes * 2 / dtype.itemsize
        return Work(self._flops["gemm"], self._flops["attention"], moved, self._kernels)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        before = {each.untyped_storage()._cdata for each in given}  # pyright: ignore
        out = func(*args, **(kwargs or {}))
        made = [each for each in tree_leaves(out) if isinstance(each, Tensor)]
        fresh = [each for each in made if each.untyped_storage()._cdata not in before]  # pyright: ignore
        for tensor in fresh:
            self._hold(tensor)
        if func.is_view or not (fresh or func._schema.is_mutable):  # pyright: ignore
            return out
        self._kernels += 1
        self._count(func, args, kwargs or {}, out, given, made)
        return out

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()  # pyright: ignore
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._let_go, key, size)

    def _let_go(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size

    def _count(
        self,
        func: Any,
        args: Any,
        kwargs: dict[str, Any],
        out: Any,
        given: Iterable[Tensor],
        made: Iterable[Tensor],
    ) -> None:
        name = str(func._schema.name)  # pyright: ignore
        read = [_bytes(each) for each in given]
        written = sum(map(_bytes, made))
        if "convolution" in name:
            self.inside = max(self.inside, sum(read) + written)
        else:
            strange = (_bytes(each) for each in given if not each.is_contiguous())
            self.inside = max(self.inside, sum(strange))
        if _ATTENTION in name:
            self._flops["attention"] += _attention_flops(args, backward="backward" in name)
        elif (formula := flop_registry.get(func._overloadpacket)) is not None:  # pyright: ignore
            self._flops["gemm"] += cast("Any", formula)(*args, **kwargs, out_val=out)
        else:
            self._moved_bytes += sum(read) + written


def _bytes(tensor: Tensor) -> int:
    return prod(tensor.shape) * tensor.element_size()


def _attention_flops(args: Any, *, backward: bool) -> float:
    """Of the products of scores and of values; a causal mask is not looked at."""
    q, k, v = args[1:4] if backward else args[:3]
    return (2 if backward else 1) * float(sdpa_flop_count(q.shape, k.shape, v.shape))
